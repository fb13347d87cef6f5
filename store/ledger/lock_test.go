package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

const holdEnv = "UNDERWRITE_TEST_HOLD_LOCK"

// TestMain turns the test binary into a process that holds a lock until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		if _, err := Acquire(dir, "row"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		select {}
	}
	os.Exit(m.Run())
}

func TestLockDiesWithItsProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	if _, err := Acquire(dir, "row"); !errors.Is(err, ErrBusy) {
		t.Errorf("Acquire while held elsewhere: %v, want ErrBusy", err)
	}
	other, err := Acquire(dir, "other")
	if err != nil {
		t.Errorf("another lock: %v", err)
	} else if err := other.Release(); err != nil {
		t.Error(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	l, err := Acquire(dir, "row")
	if err != nil {
		t.Fatalf("Acquire after the holder's death: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("lock files left: %v", left)
	}
}

func TestLockRefusesNames(t *testing.T) {
	for _, name := range []string{"", "../x", "a/b", "A", "a.b"} {
		if _, err := Acquire(t.TempDir(), name); err == nil {
			t.Errorf("Acquire(%q) worked", name)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "row")); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(dir, "row"); err == nil {
		t.Error("Acquire followed a link")
	}
}

// TestLockExcludes: removing the file on release lets no two in at once.
func TestLockExcludes(t *testing.T) {
	dir := t.TempDir()
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for taken := 0; taken < 50; {
				l, err := Acquire(dir, "row")
				if errors.Is(err, ErrBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				inside.Add(-1)
				taken++
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
