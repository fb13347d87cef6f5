package attest

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkVerifyPair validates a capability and its receipt, each with a
// P-256 signature, as a controller does. On a machine that others use too,
// cpu-ms, the processor time of a pair, says more than the time that passed.
func BenchmarkVerifyPair(b *testing.B) {
	e, key := testExpectation(), newKey(b)
	capability, receipt := testPayloads(b, e)
	c, r := seal(b, key, PayloadType, capability), seal(b, key, PayloadType, receipt)
	verify := verifierFor(b, key)
	before := processorTime(b)
	for b.Loop() {
		if _, err := VerifyReceipt(c, r, e, verify, testNow); err != nil {
			b.Fatal(err)
		}
	}
	used := processorTime(b) - before
	b.ReportMetric(float64(used)/float64(time.Millisecond)/float64(b.N), "cpu-ms")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
