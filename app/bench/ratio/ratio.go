// Package ratio compares the product with an anchor that does the same in the
// plainest way, on a machine that others use too: both run by turns in one
// run, and the median over the pairs is told, not a time.
package ratio

import (
	"slices"
	"testing"
	"time"
)

// A Result holds medians over all pairs.
type Result struct {
	Anchor, Ours time.Duration
	Ratio        float64 // of ours to the anchor, within each pair
	Pairs        int
}

// A Pairing collects the pairs of one comparison. The zero value is empty.
type Pairing struct {
	anchor, ours []time.Duration
	ratios       []float64
}

// Run times both once. Which of them is first changes with each pair, so that
// neither always finds the caches as the other has left them.
func (p *Pairing) Run(anchor, ours func() error) error {
	var a, o time.Duration
	var err error
	if len(p.ratios)%2 == 0 {
		if a, err = timed(anchor); err == nil {
			o, err = timed(ours)
		}
	} else if o, err = timed(ours); err == nil {
		a, err = timed(anchor)
	}
	if err != nil {
		return err
	}
	p.anchor, p.ours = append(p.anchor, a), append(p.ours, o)
	p.ratios = append(p.ratios, float64(o)/float64(a))
	return nil
}

func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// Result returns the medians so far; there must be a pair.
func (p *Pairing) Result() Result {
	return Result{Anchor: Median(p.anchor), Ours: Median(p.ours), Ratio: Median(p.ratios), Pairs: len(p.ratios)}
}

// Median returns the middle value, the upper one of two; values must not be
// empty.
func Median[T time.Duration | float64 | int64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Compare is a benchmark of pairs. It reports the ratio and both medians in
// milliseconds; use -benchtime=Nx for N pairs.
func Compare(b *testing.B, anchor, ours func() error) {
	b.Helper()
	var p Pairing
	for b.Loop() {
		if err := p.Run(anchor, ours); err != nil {
			b.Fatal(err)
		}
	}
	r := p.Result()
	b.ReportMetric(r.Ratio, "ratio")
	b.ReportMetric(millis(r.Anchor), "anchor-ms")
	b.ReportMetric(millis(r.Ours), "ours-ms")
	b.ReportMetric(0, "ns/op") // of a pair: it says nothing
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
