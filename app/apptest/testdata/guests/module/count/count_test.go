package count

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestWords(t *testing.T) {
	texts := make([]string, 1000)
	for i := range texts {
		texts[i] = "one two"
	}
	for i, n := range Words(texts) {
		if n != 2 {
			t.Fatalf("text %d has %d words", i, n)
		}
	}
}

// TestItself runs this test's program once more, as tests of programs do.
func TestItself(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if os.Getenv("FILE") != "" {
		file = os.Getenv("FILE")
		if err := os.WriteFile(file, []byte("written"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "TestItself")
	cmd.Env = append(os.Environ(), "FILE="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if b, err := os.ReadFile(file); string(b) != "written" {
		t.Errorf("%q, %v", b, err)
	}
}
