package apptest_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"underwrite/app/apptest"
)

// document is docs/verify.md with a reader who types its commands, word for
// word, in an empty directory with underwrite in the path.
type document struct {
	text string
	bin  string // first directory of the path
	dir  string
}

func readDocument(t *testing.T) *document {
	t.Helper()
	requireRoot(t) // prove starts a sandbox
	text, err := os.ReadFile("../../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	d := &document{text: string(text), bin: t.TempDir(), dir: t.TempDir()}
	if err := os.Symlink(apptest.Binary(t), filepath.Join(d.bin, "underwrite")); err != nil {
		t.Fatal(err)
	}
	return d
}

// commands returns the fenced shell commands between this heading and the next
// of its level, block by block. There must be some.
func (d *document) commands(t *testing.T, heading string) []string {
	t.Helper()
	_, section, found := strings.Cut(d.text, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for {
		_, rest, more := strings.Cut(section, "\n```sh\n")
		if !more {
			break
		}
		block, rest, closed := strings.Cut(rest, "\n```\n")
		if !closed {
			t.Fatalf("a block under %q has no end", heading)
		}
		blocks, section = append(blocks, block+"\n"), rest
	}
	if !found || len(blocks) == 0 {
		t.Fatalf("docs/verify.md has no commands under %q", heading)
	}
	return blocks
}

// run runs commands, which must all succeed, in a network namespace of their
// own in which no interface is up. It returns standard output and error.
func (d *document) run(t *testing.T, commands string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := d.try(commands)
	if err != nil {
		t.Fatalf("%v\n%s\nstdout: %s\nstderr: %s", err, commands, stdout, stderr)
	}
	return stdout, stderr
}

func (d *document) try(commands string) (stdout, stderr string, err error) {
	var out, errout bytes.Buffer
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, &out, &errout
	cmd.Env = []string{"PATH=" + d.bin + ":" + os.Getenv("PATH"), "HOME=" + d.dir, "TMPDIR=" + os.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	err = cmd.Run()
	return out.String(), errout.String(), err
}

func TestVerifyDocument(t *testing.T) {
	d := readDocument(t)
	d.run(t, strings.Join(d.commands(t, "Something to verify"), ""))
	stdout, _ := d.run(t, strings.Join(d.commands(t, "With underwrite"), ""))
	if !strings.HasPrefix(stdout, "verified: ") {
		t.Errorf("output %q, want it to begin with verified", stdout)
	}
	// The same command tells a changed receipt.
	receipt := filepath.Join(d.dir, "out/receipt.dsse.json")
	b, err := os.ReadFile(receipt)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(receipt, b, 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err = d.try(strings.Join(d.commands(t, "With underwrite"), ""))
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(stdout, "invalid: ") {
		t.Errorf("changed receipt: %v, %q, want exit code 1 and invalid", err, stdout)
	}
}
