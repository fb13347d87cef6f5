package apptest_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
)

func exceed(args ...string) []string { return append([]string{"-I", "guests/exceed.py"}, args...) }

// violations exceed one limit each. What is measured is in the limit's unit, and
// at least the limit.
var violations = map[string]struct {
	guest
	kind  string
	limit int64
}{
	"wall": {guest{program: "sh", args: []string{"-c", "sleep 1000"}, limits: attest.Limits{WallSeconds: 2}}, wire.FaultWall, 2},

	"cpu-one-process":    {guest{args: exceed("burn"), limits: attest.Limits{CPUSeconds: 2}}, wire.FaultCPU, 2},
	"cpu-threads":        {guest{args: exceed("cpu_threads"), limits: attest.Limits{CPUSeconds: 2}}, wire.FaultCPU, 2},
	"cpu-short-children": {guest{args: exceed("cpu_children"), limits: attest.Limits{CPUSeconds: 2}}, wire.FaultCPU, 2},

	"memory-one-process": {guest{args: exceed("memory_one"), limits: littleMemory}, wire.FaultMemory, 128 * mib},
	"memory-fork-tree":   {guest{args: exceed("memory_tree"), limits: littleMemory}, wire.FaultMemory, 128 * mib},
	"memory-tmp":         {guest{args: exceed("memory_files", "/tmp", "112")}, wire.FaultMemory, 256 * mib},
	"memory-dev-shm":     {guest{args: exceed("memory_files", "/dev/shm", "176")}, wire.FaultMemory, 256 * mib},

	"processes-fork-bomb":      {guest{args: exceed("fork_bomb"), limits: attest.Limits{Processes: 32}}, wire.FaultProcesses, 32},
	"processes-thread-bomb":    {guest{args: exceed("thread_bomb"), limits: attest.Limits{Processes: 32}}, wire.FaultProcesses, 32},
	"processes-one-more":       {guest{args: exceed("processes", "9"), limits: attest.Limits{Processes: 8}}, wire.FaultProcesses, 8},
	"processes-thread-more":    {guest{args: exceed("threads", "9"), limits: attest.Limits{Processes: 8}}, wire.FaultProcesses, 8},
	"processes-more-than-self": {guest{program: "sh", args: []string{"-c", "true & wait"}, limits: attest.Limits{Processes: 1}}, wire.FaultProcesses, 1},

	"workspace-big-file":    {guest{args: exceed("workspace_big")}, wire.FaultWorkspace, 16 * mib},
	"workspace-sparse-file": {guest{args: exceed("workspace_sparse")}, wire.FaultWorkspace, 16 * mib},
	"workspace-small-files": {guest{args: exceed("workspace_files", "x")}, wire.FaultWorkspace, 16 * mib},
	"workspace-empty-files": {guest{args: exceed("workspace_files", "")}, wire.FaultWorkspace, 16384}, // files

	"output-flood":       {guest{args: exceed("output_flood")}, wire.FaultOutput, 64 << 10},
	"output-empty-lines": {guest{args: exceed("output_lines")}, wire.FaultOutput, 64 << 10},
	"output-stdout":      {guest{program: "sh", args: []string{"-c", "printf 12345678901"}, limits: attest.Limits{OutputBytes: 10}}, wire.FaultOutput, 10},
	"output-stderr":      {guest{args: exceed("output_stderr")}, wire.FaultOutput, 64 << 10},
	"output-both":        {guest{args: exceed("output_both", "65537")}, wire.FaultOutput, 64 << 10},
}

var littleMemory = attest.Limits{MemoryBytes: 128 * mib}

// within are guests that go as far as a limit allows, and no further.
var within = map[string]guest{
	// Counterparts of memory-tmp and memory-dev-shm: the heap alone fits, and so
	// do the files.
	"memory-heap":     {args: exceed("take", fmt.Sprint(176*mib))},
	"memory-tmp-only": {program: "sh", args: []string{"-c", "! said=$(dd if=/dev/zero of=/tmp/file bs=1M 2>&1); case $said in *'No space left'*) ;; *) exit 1;; esac"}, limits: littleMemory},

	// The job's first process counts, and so does every thread.
	"processes-exactly": {args: exceed("processes", "8"), limits: attest.Limits{Processes: 8}},
	"threads-exactly":   {args: exceed("threads", "8"), limits: attest.Limits{Processes: 8}},
	"processes-only":    {program: "sh", args: []string{"-c", "echo 1"}, limits: attest.Limits{Processes: 1}},

	"workspace-refused": {args: exceed("workspace_refused")},

	"output-exactly": {args: exceed("output_exact", "65536")},
	"output-slow":    {args: exceed("output_exact", fmt.Sprint(mib)), limits: attest.Limits{OutputBytes: mib}},

	"cpus-one": {args: exceed("parallel", "3", "2"), cpus: 1},
	"cpus-two": {args: exceed("parallel", "2", "1"), cpus: 2},
}

// TestLimits has one gateway run a guest beyond each limit: none gets a receipt,
// and after each of them the gateway works. The guests that stay within the
// limits get theirs.
func TestLimits(t *testing.T) {
	guests := map[string]guest{}
	for name, v := range violations {
		guests[name] = v.guest
	}
	for name, g := range within {
		guests[name] = g
	}
	r := newResident(t, guests)
	for name, v := range violations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := r.faulted(t, name, v.kind)
			if d.Fault.Limit != v.limit || d.Fault.Measured < v.limit {
				t.Errorf("fault = %+v, want a limit of %d and no less measured", d.Fault, v.limit)
			}
			if d.Usage.WallMillis <= 0 || d.Usage.CPUMillis <= 0 || d.Usage.MemoryBytes <= 0 {
				t.Errorf("usage = %+v", d.Usage)
			}
		})
	}
	for name, check := range map[string]func(*testing.T, *resident, evidence){
		"memory-heap": nil, "memory-tmp-only": nil, "workspace-refused": nil,
		"processes-exactly": usesTasks(8), "threads-exactly": usesTasks(8), "processes-only": usesTasks(1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := r.passes(t, name, nil)
			if check != nil {
				check(t, r, e)
			}
		})
	}
	t.Run("output-exactly", func(t *testing.T) { t.Parallel(); r.testComplete(t, "output-exactly", 64<<10, nil) })
	t.Run("output-slow", func(t *testing.T) { t.Parallel(); r.testSlowReader(t) })
	t.Run("cpus-one", func(t *testing.T) { t.Parallel(); r.testCPUs(t, "cpus-one", 1) })
	t.Run("cpus-two", func(t *testing.T) { t.Parallel(); r.testCPUs(t, "cpus-two", 2) })
	t.Run("forged diagnostic", func(t *testing.T) { t.Parallel(); r.testForgedDiagnostic(t) })
}

// usesTasks requires that the guest had as many tasks as it says and as were
// measured, its first process included.
func usesTasks(n int64) func(*testing.T, *resident, evidence) {
	return func(t *testing.T, _ *resident, e evidence) {
		t.Helper()
		if e.stdout != fmt.Sprintln(n) || e.usage().Processes != n {
			t.Errorf("the guest counts %q, measured are %d, want %d", e.stdout, e.usage().Processes, n)
		}
	}
}

// testComplete requires every byte of the pattern that output_exact writes.
func (r *resident) testComplete(t *testing.T, name string, total int, watch func(wire.Event)) {
	t.Helper()
	e := r.passes(t, name, watch)
	var want [2][]byte
	for at, size := 0, 1; at < total; at, size = at+size, size*3%65521 {
		for i := at; i < min(at+size, total); i++ {
			want[size&1] = append(want[size&1], byte(i*7+i/251))
		}
	}
	if !bytes.Equal([]byte(e.stdout), want[0]) || !bytes.Equal([]byte(e.stderr), want[1]) {
		t.Errorf("%d and %d bytes, want %d and %d, or other bytes", len(e.stdout), len(e.stderr), len(want[0]), len(want[1]))
	}
}

// testSlowReader watches the job without haste: the events may lose what does
// not fit, the evidence nothing.
func (r *resident) testSlowReader(t *testing.T) {
	seen := 0
	r.testComplete(t, "output-slow", mib, func(wire.Event) {
		seen++
		time.Sleep(100 * time.Millisecond)
	})
	if seen == 0 {
		t.Error("no event was seen")
	}
	r.works(t)
}

// cpuSlack is what a quota may be exceeded by: the kernel hands it out in
// periods of 100 ms and pieces of 5 ms for each processor.
const cpuSlack = 300

// testCPUs requires that the guest sees n processors, and that it gets no more
// time of them, however many processes it has.
func (r *resident) testCPUs(t *testing.T, name string, n int64) {
	e := r.passes(t, name, nil)
	if want := fmt.Sprintf("%d %d\n", n, n); e.stdout != want {
		t.Errorf("processors = %q, want %q", e.stdout, want)
	}
	if u := e.usage(); u.CPUMillis > n*u.WallMillis+cpuSlack || u.CPUMillis == 0 {
		t.Errorf("%d ms of CPU time in %d ms with %d processors", u.CPUMillis, u.WallMillis, n)
	}
}

// testForgedDiagnostic: the signature is what makes a diagnostic worth reading.
func (r *resident) testForgedDiagnostic(t *testing.T) {
	all, err := filepath.Glob(r.path("state", "diagnostics", "*.dsse.json"))
	must(t, err)
	if len(all) == 0 {
		r.faulted(t, "wall", wire.FaultWall)
		all, err = filepath.Glob(r.path("state", "diagnostics", "*.dsse.json"))
		must(t, err)
	}
	envelope, err := attest.ParseEnvelope(readFile(t, all[0]))
	must(t, err)
	envelope.Payload = bytes.Replace(envelope.Payload, []byte(`"limit":`), []byte(`"limit":1`), 1)
	forged, err := envelope.Encode()
	must(t, err)
	if _, err := attest.Open(forged, attest.PayloadType, r.verifier(t)); err == nil || !strings.Contains(err.Error(), "signature") {
		t.Errorf("a forged diagnostic opens: %v", err)
	}
}
