// Package apptest builds the real binary for tests that drive it, so that no
// test binary but the sandbox's own has to link gVisor.
package apptest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// BinaryVariable names the environment variable that points to a binary to
// test instead of one built from this module.
const BinaryVariable = "UNDERWRITE_BINARY"

// Binary returns the path of a static underwrite binary built from this
// module. The first call of a test process builds it; Go's caches make that
// cheap when nothing changed.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// Each checkout has its own, or tests of one would drive the other's.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("underwrite-test-%d-%.8x", os.Getuid(), sha256.Sum256([]byte(root))))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	// Test processes of several packages share the file; go build leaves it
	// alone while it is up to date.
	path := filepath.Join(dir, "underwrite")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, module+"/app")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build underwrite: %w\n%s", err, out)
	}
	return path, nil
})

const module = "underwrite"

// moduleRoot is the directory of go.mod above the test's working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
