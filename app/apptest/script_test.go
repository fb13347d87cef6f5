package apptest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"underwrite/app/apptest"
)

// TestScripts runs the scripts in testdata/script, one for each behaviour that
// a user sees, against the real binary. Beside testscript's own commands they
// have:
//
//	underwrite CODE ARG…   run the binary, which must end with this exit code
//	repository DIR         make a repository whose branches base and head differ
//	json FIELD VALUE       the last output is one JSON object with this value;
//	                       FIELD is dotted, VALUE is as JSON writes it
//	jsonenv NAME FIELD     set a variable to that field's text
//	copyfiles FROM TO      copy a directory of files
//	flip FILE              change one byte in the middle of a file
//	clean                  nothing is left in the temporary directory
func TestScripts(t *testing.T) {
	requireRoot(t)
	binary := apptest.Binary(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("UNDERWRITE", binary)
			e.Setenv("TMPDIR", filepath.Join(e.WorkDir, "tmp"))
			return os.Mkdir(filepath.Join(e.WorkDir, "tmp"), 0o700)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"underwrite": runUnderwrite, "repository": makeRepository, "json": checkJSON, "jsonenv": jsonEnv,
			"copyfiles": copyFiles, "flip": flip, "clean": checkClean,
		},
	})
}

// requireRoot: sandboxes need root.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("these tests need root")
	}
	t.Skip("these tests need root")
}

func usage(ts *testscript.TestScript, neg bool, args []string, least int) {
	if neg || len(args) < least {
		ts.Fatalf("wrong use of the command")
	}
}

func runUnderwrite(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2)
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(ts.Getenv("UNDERWRITE"), args[1:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func makeRepository(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1)
	ts.Check(newRepository(ts.MkAbs(args[0])))
}

func gitRepository(t *testing.T, dir string) {
	t.Helper()
	if err := newRepository(dir); err != nil {
		t.Fatal(err)
	}
}

// newRepository makes a repository whose branches base and head differ in one
// file.
func newRepository(dir string) error {
	greeting := filepath.Join(dir, "greeting")
	return errors.Join(
		os.Mkdir(dir, 0o755),
		git(dir, "init", "--quiet", "--initial-branch=base"),
		os.WriteFile(greeting, []byte("hello\n"), 0o644),
		git(dir, "add", "."),
		git(dir, "commit", "--quiet", "--message=base"),
		git(dir, "checkout", "--quiet", "-b", "head"),
		os.WriteFile(greeting, []byte("hello, world\n"), 0o644),
		git(dir, "commit", "--quiet", "--all", "--message=head"),
	)
}

func git(dir string, args ...string) error {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// field reads a dotted field of the last output, which must be one object.
func field(ts *testscript.TestScript, path string) any {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	d.UseNumber()
	var v any
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("more than one value in the output")
	}
	for name := range strings.SplitSeq(path, ".") {
		var ok bool
		switch at := v.(type) {
		case map[string]any:
			v, ok = at[name]
		case []any:
			i, err := strconv.Atoi(name)
			if ok = err == nil && i < len(at); ok {
				v = at[i]
			}
		}
		if !ok {
			ts.Fatalf("the output has no field %s", path)
		}
	}
	return v
}

func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2)
	got, err := json.Marshal(field(ts, args[0]))
	ts.Check(err)
	if string(got) != args[1] {
		ts.Fatalf("%s is %s, want %s", args[0], got, args[1])
	}
}

func jsonEnv(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2)
	ts.Setenv(args[0], fmt.Sprint(field(ts, args[1])))
}

func copyFiles(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2)
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(ts.MkAbs(args[0]))))
}

func flip(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1)
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	b[len(b)/2] ^= 1
	ts.Check(os.WriteFile(path, b, 0o600))
}

func checkClean(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0)
	left, err := os.ReadDir(ts.Getenv("TMPDIR"))
	ts.Check(err)
	if len(left) > 0 {
		ts.Fatalf("left in the temporary directory: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	if strings.Contains(string(mounts), ts.Getenv("WORK")) {
		ts.Fatalf("a mount is left in %s", ts.Getenv("WORK"))
	}
}
