package gvisor

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func randomName() string { return fmt.Sprintf("%08x", rand.Uint32()) }

func TestTrue(t *testing.T) {
	if code := newBox(t, "/usr/bin/true").exits(); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
}

func TestExitCodes(t *testing.T) {
	for _, want := range []int{0, 1, 127, 137, 255} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			b := newBox(t, python, "-c", fmt.Sprintf("import os; os._exit(%d)", want))
			if got := b.exits(); got != want {
				t.Errorf("exit code = %d, want %d", got, want)
			}
		})
	}
}
