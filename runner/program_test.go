package runner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"underwrite/attest"
)

// digestOf asks for the digest of the file at path, at a time long after its
// last change.
func digestOf(t *testing.T, path, cache string, later time.Duration) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum, err := programDigest(f, cache, func() time.Time { return time.Now().Add(later) })
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestProgramDigest(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program, cache := filepath.Join(dir, "program"), filepath.Join(dir, "cache")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(step, content string, later time.Duration) {
		t.Helper()
		if got := digestOf(t, program, cache, later); got != attest.SHA256Hex([]byte(content)) {
			t.Errorf("%s: digest %s is not that of %q", step, got, content)
		}
	}
	write(program, "one")
	check("just written", "one", -time.Hour)
	if _, err := os.Stat(cache); err == nil {
		t.Error("the digest of a file that may still change unseen was remembered")
	}
	check("settled", "one", time.Hour)
	remembered, err := os.ReadFile(cache)
	if err != nil {
		t.Fatal(err)
	}
	check("remembered", "one", time.Hour)

	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	write(program, "two") // same inode and size, and the old modification time
	if err := os.Chtimes(program, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	check("overwritten in place", "two", time.Hour)

	other := filepath.Join(dir, "other")
	write(other, "six")
	if err := os.Rename(other, program); err != nil {
		t.Fatal(err)
	}
	check("replaced", "six", time.Hour)
	for _, damaged := range []string{"", "{", "null", string(remembered[:len(remembered)-9]), string(remembered)} {
		write(cache, damaged)
		check("cache "+damaged, "six", -time.Hour)
	}
}

// TestProgramDigestIsRecalled shows that the cache is used at all.
func TestProgramDigestIsRecalled(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program, cache := filepath.Join(dir, "program"), filepath.Join(dir, "cache")
	if err := os.WriteFile(program, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	later := func() time.Time { return time.Now().Add(time.Hour) }
	first, err := programDigest(f, cache, later)
	if err != nil {
		t.Fatal(err)
	}
	// The file's position is at its end: hashing again would find nothing.
	again, err := programDigest(f, cache, later)
	if err != nil || again != first {
		t.Errorf("again: %s, %v", again, err)
	}
}
