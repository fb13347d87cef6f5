package ratio

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestPairsChangeTheirOrder(t *testing.T) {
	var order []string
	note := func(name string) func() error {
		return func() error { order = append(order, name); return nil }
	}
	var p Pairing
	for range 3 {
		if err := p.Run(note("a"), note("o")); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a", "o", "o", "a", "a", "o"}; !slices.Equal(order, want) {
		t.Errorf("order = %v, want %v", order, want)
	}
	if r := p.Result(); r.Pairs != 3 {
		t.Errorf("pairs = %d", r.Pairs)
	}
}

func TestFailedPairCountsNothing(t *testing.T) {
	broken := errors.New("broken")
	fine, fails := func() error { return nil }, func() error { return broken }
	var p Pairing
	if err := p.Run(fails, fine); !errors.Is(err, broken) {
		t.Errorf("anchor fails: %v", err)
	}
	if err := p.Run(fine, fails); !errors.Is(err, broken) {
		t.Errorf("ours fails: %v", err)
	}
	if len(p.ratios) > 0 {
		t.Errorf("ratios = %v", p.ratios)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []time.Duration
		want   time.Duration
	}{
		{[]time.Duration{7}, 7},
		{[]time.Duration{9, 1, 5}, 5},
		{[]time.Duration{9, 1, 5, 7}, 7},
	} {
		given := slices.Clone(c.values)
		if got := Median(c.values); got != c.want || !slices.Equal(c.values, given) {
			t.Errorf("Median(%v) = %d, want %d", given, got, c.want)
		}
	}
}
