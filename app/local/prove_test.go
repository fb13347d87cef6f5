package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/attest"
	"underwrite/runner/policy"
	"underwrite/runner/wire"
)

// TestExampleProfile: what `profile init` writes is accepted as it stands.
func TestExampleProfile(t *testing.T) {
	p, err := policy.ParseProfile("profile.yml", ExampleProfile, Ceilings)
	if err != nil {
		t.Fatal(err)
	}
	job, err := p.Job()
	if err != nil || filepath.Base(job.Executable.Path) != "true" || len(job.Argv) != 1 {
		t.Errorf("job = %+v, %v", job, err)
	}
}

// TestCeilingsAreDocumented: docs/local.md has a row for each.
func TestCeilingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/local.md")
	if err != nil {
		t.Fatal(err)
	}
	c := Ceilings
	want := policy.Limits{WallSeconds: 3600, CPUSeconds: 14400, MemoryBytes: 16 << 30, Processes: 4096, WorkspaceBytes: 8 << 30, OutputBytes: 64 << 20}
	if c != want {
		t.Errorf("ceilings are %+v, documented are %+v", c, want)
	}
	for _, row := range []string{"wallSeconds | 3,600", "cpuSeconds | 14,400", "memoryBytes | 16 GiB", "processes | 4,096", "workspaceBytes | 8 GiB", "outputBytes | 64 MiB"} {
		if !strings.Contains(string(text), "| "+row+" |") {
			t.Errorf("docs/local.md has no row %q", row)
		}
	}
}

func TestRepositoryName(t *testing.T) {
	for dir, want := range map[string]string{
		"/src/shop": "local/shop", "/src/shop.git": "local/shop", "/": "local/repository", "/src/ein Laden": "local/ein-Laden",
		"/src/..x..": "local/x", "/src/.git": "local/repository", "/src/läden": "local/l-den", "/src/" + strings.Repeat("a", 200): "local/" + strings.Repeat("a", 100),
	} {
		if got := repositoryName(dir); got != want {
			t.Errorf("repositoryName(%q) = %q, want %q", dir, got, want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"/a/b-c_d.e": "/a/b-c_d.e", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "a\nb": "'a\nb'"} {
		if got := shellWord(in); got != want {
			t.Errorf("shellWord(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestPublish: either everything appears or nothing, and nothing is replaced.
func TestPublish(t *testing.T) {
	start := func(t *testing.T) (*output, []published, string) {
		dir := t.TempDir()
		o, err := newOutput(filepath.Join(dir, "out"), attest.NewUUID())
		if err != nil {
			t.Fatal(err)
		}
		source := filepath.Join(t.TempDir(), "source")
		writeFile(t, source, []byte("from a file"))
		return o, []published{
			{path: o.publicKey(), data: []byte("key")},
			{path: o.dir, entries: []published{{path: "a", data: []byte("data")}, {path: "b", from: source}}},
		}, source
	}
	t.Run("all", func(t *testing.T) {
		o, all, _ := start(t)
		if err := o.publish(all); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(o.dir, "b"))
		if err != nil || string(b) != "from a file" {
			t.Errorf("b = %q, %v", b, err)
		}
		requireNames(t, filepath.Dir(o.dir), "out", "out.pub.pem")
	})
	t.Run("appeared meanwhile", func(t *testing.T) {
		o, all, _ := start(t)
		if err := os.Mkdir(o.dir, 0o700); err != nil { // even an empty directory is not ours
			t.Fatal(err)
		}
		if err := o.publish(all); !errors.Is(err, os.ErrExist) {
			t.Errorf("publish = %v, want ErrExist", err)
		}
		requireNames(t, filepath.Dir(o.dir), "out")
	})
	t.Run("source is gone", func(t *testing.T) {
		o, all, source := start(t)
		if err := os.Remove(source); err != nil {
			t.Fatal(err)
		}
		if err := o.publish(all); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("publish = %v, want ErrNotExist", err)
		}
		requireNames(t, filepath.Dir(o.dir))
	})
}

func requireNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// TestSweepWorkspaces: what a killed run left goes, a living run's stays.
func TestSweepWorkspaces(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const noCgroup = "/underwrite-local-test"
	living, err := newWorkspace(noCgroup)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newWorkspace(noCgroup)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, dead.path("key.pem"), []byte("secret"))
	dead.lock.Close() // as the kernel does for a process that ends
	third, err := newWorkspace(noCgroup)
	if err != nil {
		t.Fatal(err)
	}
	for w, want := range map[*workspace]bool{living: true, dead: false, third: true} {
		if _, err := os.Stat(w.dir); (err == nil) != want {
			t.Errorf("%s: %v, want it to be there: %v", w.dir, err, want)
		}
	}
	if err := errors.Join(living.remove(), third.remove()); err != nil {
		t.Error(err)
	}
	requireNames(t, os.Getenv("TMPDIR"))
}

func TestStatedFault(t *testing.T) {
	statement := func(change func(map[string]any)) []byte {
		s := map[string]any{
			"_type":         attest.StatementType,
			"subject":       []any{map[string]any{"name": "x", "digest": map[string]string{"sha256": "aa"}}},
			"predicateType": wire.DiagnosticPredicate,
			"predicate":     wire.Diagnostic{Version: 1, Fault: wire.Fault{Kind: wire.FaultWall, Limit: 5}},
		}
		change(s)
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f, err := statedFault(statement(func(map[string]any) {}), "aa")
	if err != nil || f.Kind != wire.FaultWall || f.Limit != 5 {
		t.Errorf("statedFault = %+v, %v", f, err)
	}
	for name, payload := range map[string][]byte{
		"other request": statement(func(s map[string]any) {
			s["subject"] = []any{map[string]any{"digest": map[string]string{"sha256": "bb"}}}
		}),
		"no subject":      statement(func(s map[string]any) { delete(s, "subject") }),
		"other predicate": statement(func(s map[string]any) { s["predicateType"] = attest.ReceiptPredicate }),
		"not JSON":        []byte("{"),
	} {
		if f, err := statedFault(payload, "aa"); !errors.Is(err, errDiagnostic) {
			t.Errorf("%s: %+v, %v, want errDiagnostic", name, f, err)
		}
	}
}

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{W: &b}
	p.Event(wire.Event{Usage: &wire.Usage{WallMillis: 1}}) // nothing has begun
	p.Event(wire.Event{Phase: PhaseFreeze})
	p.Event(wire.Event{Phase: wire.PhaseRun})
	p.Event(wire.Event{Usage: &wire.Usage{WallMillis: 1500, MemoryBytes: 3 << 20}})
	p.Event(wire.Event{Stdout: []byte("\x1b[31m")})
	p.Event(wire.Event{Phase: "\x1b[31m"})
	p.End()
	p.End()
	text := b.String()
	for _, want := range []string{"  freeze ", "  run ", "1.5 s  (cpu 0.0 s, memory 3 MiB", "  ? "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if strings.Contains(strings.ReplaceAll(text, clearLine, ""), "\x1b") || strings.Count(text, "\n") != 3 {
		t.Errorf("shown: %q", text)
	}
}
