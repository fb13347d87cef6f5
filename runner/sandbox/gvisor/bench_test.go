package gvisor

import "testing"

// BenchmarkTrue measures a whole run of the smallest job.
func BenchmarkTrue(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		box := newBox(b, "/usr/bin/true")
		b.StartTimer()
		if _, err := box.run(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
