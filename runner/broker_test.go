package runner

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/attest/gittree"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

func TestExecuteCompletes(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	want := wire.Outcome{Version: 1, Status: wire.Complete, EvidenceDir: in.evidence()}
	if o := h.Execute(t.Context(), in.input(raw)); o != want {
		t.Fatalf("outcome = %+v", o)
	}
	v := verifyEvidence(t, in, raw, in.evidence())
	if got := v.FinishedAt.Sub(v.StartedAt); got != 1234*time.Microsecond {
		t.Errorf("duration = %v, want the monotonic time cut to microseconds", got)
	}
	checkPublished(t, in.evidence(), -1)
	checkClean(t, in)
	row := h.row(t, raw)
	if row.State != ledger.Complete || row.SignerID != "urn:underwrite:signer:example" || row.ValidatedAt.IsZero() {
		t.Errorf("row = %+v", row)
	}
	var phases []string
	for _, e := range h.recorded(t) {
		if e.Phase != "" {
			phases = append(phases, e.Phase)
		}
	}
	if want := []string{wire.PhasePolicy, wire.PhaseReserve, wire.PhaseQuarantine, wire.PhaseMaterialize, wire.PhaseMeasure,
		wire.PhaseCapability, wire.PhaseSandbox, wire.PhaseRun, wire.PhaseTeardown, wire.PhaseOutput, wire.PhaseReceipt,
		wire.PhasePublish}; !slices.Equal(phases, want) {
		t.Errorf("phases = %v", phases)
	}
	if h.log.Len() > 0 {
		t.Errorf("log: %s", h.log)
	}
}

// TestTrees derives both trees independently of the broker.
func TestTrees(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	var inputTree string
	h.runtime.before = func() {
		entries, err := os.ReadDir(h.Config.ScratchDir())
		must(t, err)
		workspace := scratch{h.Config.ScratchDir(), entries[0].Name()}.workspace()
		inputTree, _, err = gittree.Measure(t.Context(), workspace, gittree.DefaultLimits(1<<20))
		must(t, err)
	}
	var outputTree string
	h.runtime.job = func(ctx context.Context, spec sandbox.Spec, r *sandbox.Result) (err error) {
		outputTree, _, err = gittree.Measure(ctx, spec.Workspace, gittree.DefaultLimits(1<<20))
		return err
	}
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	row := h.row(t, raw)
	if row.InputTree != inputTree || row.OutputTree != outputTree || inputTree == outputTree {
		t.Errorf("row has trees %s, %s; measured were %s, %s", row.InputTree, row.OutputTree, inputTree, outputTree)
	}
}

func TestReplayReturnsStoredResult(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	for range 3 {
		if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
			t.Fatalf("outcome = %+v", o)
		}
	}
	receipt := func(dir string) string {
		b, err := os.ReadFile(filepath.Join(dir, wire.ReceiptFile))
		must(t, err)
		return string(b)
	}
	first := receipt(in.evidence())
	other := in.input(raw)
	other.EvidenceDir += "2"
	other.BundlePath = "/nonexistent" // nothing is read but the stored result
	if o := h.Execute(t.Context(), other); o.Status != wire.Complete || o.EvidenceDir != other.EvidenceDir {
		t.Fatalf("outcome = %+v", o)
	}
	if receipt(other.EvidenceDir) != first {
		t.Error("the replay has another receipt")
	}
	if h.runtime.starts != 1 {
		t.Errorf("the job ran %d times", h.runtime.starts)
	}
	checkClean(t, in)
}

// TestReplayConflicts: the same identity with other content, and the same
// challenge with another identity, never run and never get the stored result.
func TestReplayConflicts(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	for name, change := range map[string]func(*attest.Request){
		"other prediction": func(r *attest.Request) { r.Profile.ExitCode = 1 },
		"other target":     func(r *attest.Request) { r.Target.Number = 2 },
		"other action":     func(r *attest.Request) { r.Action.Seq = 2 },
		"other job":        func(r *attest.Request) { r.Profile.Job.Argv = append(r.Profile.Job.Argv, "x") },
	} {
		other := in.request(t, h.Broker, 1, change)
		i := in.input(other)
		i.EvidenceDir += strings.ReplaceAll(name, " ", "")
		if o := h.Execute(t.Context(), i); o.Status != wire.Failed || !strings.Contains(o.Reason, "already used") {
			t.Errorf("%s: outcome = %+v", name, o)
		}
		if _, err := os.Lstat(i.EvidenceDir); err == nil {
			t.Errorf("%s: evidence appeared", name)
		}
	}
	if h.runtime.starts != 1 {
		t.Errorf("the job ran %d times", h.runtime.starts)
	}
}

func TestMalformedRequest(t *testing.T) {
	in, h := newHarness(t)
	good := in.request(t, h.Broker, 1, nil)
	for name, raw := range map[string][]byte{
		"empty": nil, "text": []byte("hello"), "white space": append(good[:len(good):len(good)], '\n'),
		"unknown field": []byte(strings.Replace(string(good), `{"action"`, `{"aaa":1,"action"`, 1)),
		"bad challenge": []byte(strings.Replace(string(good), `"challenge":"`, `"challenge":"Z`, 1)),
	} {
		if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Failed || !strings.Contains(o.Reason, "malformed") {
			t.Errorf("%s: outcome = %+v", name, o)
		}
	}
	if left, err := h.ledger.Leftovers(t.Context()); err != nil || len(left) > 0 || h.runtime.starts > 0 {
		t.Errorf("something happened: %v, %v", left, err)
	}
}

// TestPolicyRefusal: a refused request reaches neither key nor bundle, and
// stays refused when the configuration changes.
func TestPolicyRefusal(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, func(r *attest.Request) { r.Target.Repo = "example/other" })
	input := in.input(raw)
	input.BundlePath, input.Diagnostics = "/nonexistent", ""
	load := h.LoadKey
	h.LoadKey = func() (Signer, error) { return nil, errors.New("the key was opened") }
	o := h.Execute(t.Context(), input)
	if o.Status != wire.Failed || !strings.Contains(o.Reason, "target.repo") {
		t.Fatalf("outcome = %+v", o)
	}
	if row := h.row(t, raw); row == nil || row.State != ledger.Failed || row.Capability != nil {
		t.Errorf("row = %+v", row)
	}
	h.LoadKey = load
	h.Config.Repositories = []string{"example/*"}
	if again := h.Execute(t.Context(), in.input(raw)); again != o {
		t.Errorf("after the configuration changed: %+v", again)
	}
	if h.runtime.starts != 0 {
		t.Error("the job ran")
	}
	checkClean(t, in)
}

// TestGateRefuses: every result but a clean exit ends without a receipt, with
// the fault told to whoever watches, recorded and signed.
func TestGateRefuses(t *testing.T) {
	set := func(change func(r *sandbox.Result)) func(context.Context, sandbox.Spec, *sandbox.Result) error {
		return func(_ context.Context, _ sandbox.Spec, r *sandbox.Result) error { change(r); return nil }
	}
	fault := func(k sandbox.FaultKind, measured, limit int64) func(context.Context, sandbox.Spec, *sandbox.Result) error {
		return set(func(r *sandbox.Result) { r.Exited, r.Fault, r.Measured, r.Limit = false, k, measured, limit })
	}
	inWorkspace := func(do func(dir string) error) func(context.Context, sandbox.Spec, *sandbox.Result) error {
		return func(_ context.Context, spec sandbox.Spec, _ *sandbox.Result) error { return do(spec.Workspace) }
	}
	for _, c := range []struct {
		name   string
		job    func(context.Context, sandbox.Spec, *sandbox.Result) error
		kind   string
		reason string
	}{
		{"wall", fault(sandbox.FaultWall, 31, 30), wire.FaultWall, "timed out after 30 s"},
		{"cpu", fault(sandbox.FaultCPU, 31, 30), wire.FaultCPU, "timed out after 30 s of CPU time"},
		{"memory", fault(sandbox.FaultMemory, 9, 9), wire.FaultMemory, "out of memory"},
		{"processes", fault(sandbox.FaultProcesses, 64, 64), wire.FaultProcesses, "too many processes"},
		{"workspace", fault(sandbox.FaultWorkspace, 9, 9), wire.FaultWorkspace, "the workspace is full"},
		{"files", fault(sandbox.FaultFiles, 16384, 16384), wire.FaultWorkspace, "the workspace is full: the limit is 16384 files, directories and links"},
		{"output", fault(sandbox.FaultOutput, 1001, 1000), wire.FaultOutput, "too much output"},
		{"signal", fault(sandbox.FaultSignal, 11, 0), wire.FaultSignal, "killed by signal 11 (SIGSEGV)"},
		{"fault beside an exit", set(func(r *sandbox.Result) { r.Fault = sandbox.FaultMemory }), wire.FaultMemory, "out of memory"},
		{"neither exit nor fault", set(func(r *sandbox.Result) { r.Exited = false }), wire.FaultInternal, "neither"},
		{"exit code out of range", set(func(r *sandbox.Result) { r.ExitCode = 256 }), wire.FaultInternal, "neither"},
		{"teardown not proven", set(func(r *sandbox.Result) { r.Teardown = false }), wire.FaultInternal, "not proven"},
		{"ran too long, unnoticed", set(func(r *sandbox.Result) { r.Elapsed = 30*time.Second + 1 }), wire.FaultWall, "timed out"},
		{"negative time", set(func(r *sandbox.Result) { r.Elapsed = -1 }), wire.FaultWall, "timed out"},
		{"too much CPU, unnoticed", set(func(r *sandbox.Result) { r.Usage.CPU = 30*time.Second + 1 }), wire.FaultCPU, "timed out"},
		{"too much output, unnoticed", func(_ context.Context, s sandbox.Spec, r *sandbox.Result) error {
			_, err := s.Stderr.WriteString(strings.Repeat("x", 1000))
			return err
		}, wire.FaultOutput, "too much output"},
		{"runtime error", func(context.Context, sandbox.Spec, *sandbox.Result) error { return errors.New("lost the supervisor") }, wire.FaultInternal, "lost the supervisor"},
		{"empty directory", inWorkspace(func(d string) error { return os.Mkdir(filepath.Join(d, "empty"), 0o755) }), wire.FaultUnsupportedOutput, "unsupported output: empty directory: empty"},
		{"hard link", inWorkspace(func(d string) error { return os.Link(filepath.Join(d, "made"), filepath.Join(d, "second")) }), wire.FaultUnsupportedOutput, "made"},
		{"git metadata", inWorkspace(func(d string) error {
			return errors.Join(os.Mkdir(filepath.Join(d, ".Git"), 0o755), os.WriteFile(filepath.Join(d, ".Git", "config"), nil, 0o644))
		}), wire.FaultUnsupportedOutput, ".Git"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, h := newHarness(t)
			h.runtime.job = c.job
			raw := in.request(t, h.Broker, 1, nil)
			o := h.Execute(t.Context(), in.input(raw))
			if o.Status != wire.Failed || !strings.Contains(o.Reason, c.reason) {
				t.Fatalf("outcome = %+v, want %q", o, c.reason)
			}
			if _, err := os.Lstat(in.evidence()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("evidence exists: %v", err)
			}
			if row := h.row(t, raw); row.State != ledger.Failed || row.Receipt != nil || row.Reason != o.Reason {
				t.Errorf("row = %+v", row)
			}
			if again := h.Execute(t.Context(), in.input(raw)); again != o || h.runtime.starts != 1 {
				t.Errorf("again = %+v after %d starts", again, h.runtime.starts)
			}
			checkDiagnostic(t, in, raw, c.kind)
			checkClean(t, in)
			var faults int
			for _, e := range h.recorded(t) {
				if e.Fault != nil {
					faults++
					if e.Fault.Kind != c.kind {
						t.Errorf("fault event = %+v, want %s", e.Fault, c.kind)
					}
				}
			}
			if faults != 2 { // once when it happened, once for the replay
				t.Errorf("%d fault events, want 2", faults)
			}
		})
	}
}

// checkDiagnostic opens the signed diagnostic with the public key.
func checkDiagnostic(t *testing.T, in install, raw []byte, kind string) {
	t.Helper()
	envelope, err := os.ReadFile(filepath.Join(in.diagnose(), replayKey(t, raw)+".dsse.json"))
	must(t, err)
	pem, err := os.ReadFile(in.publicKey())
	must(t, err)
	key, err := attest.ParsePublicKeyPEM(pem)
	must(t, err)
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: "s", Key: key})
	must(t, err)
	opened, err := attest.Open(envelope, attest.PayloadType, verify)
	must(t, err)
	var s struct {
		Subject       []struct{ Digest map[string]string }
		PredicateType string
		Predicate     wire.Diagnostic
	}
	must(t, json.Unmarshal(opened.Payload, &s))
	if s.PredicateType != wire.DiagnosticPredicate || s.Predicate.Fault.Kind != kind || s.Subject[0].Digest["sha256"] != attest.SHA256Hex(raw) {
		t.Errorf("diagnostic = %s", opened.Payload)
	}
	if left, _ := os.ReadDir(in.diagnose()); len(left) != 1 {
		t.Errorf("diagnostics hold %v", left)
	}
}

// TestRefusedInput: what can never run ends before anything is signed.
func TestRefusedInput(t *testing.T) {
	damage := func(t *testing.T, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte{0xff}, 300)
		must(t, err)
	}
	for _, c := range []struct {
		name, cwd, reason string
		change            func(*attest.Request)
		prepare           func(t *testing.T, in install)
	}{
		{name: "missing cwd", cwd: "nowhere", reason: "working directory is missing: nowhere"},
		{name: "cwd is a file", cwd: "README.md", reason: "working directory is a file: README.md"},
		{name: "cwd below a file", cwd: "README.md/x", reason: "working directory is a file: README.md"},
		{name: "cwd is a link", cwd: "link", reason: "symbolic link: link"},
		{name: "cwd through a link", cwd: "link/dir", reason: "symbolic link: link"},
		{name: "damaged bundle", cwd: ".", prepare: func(t *testing.T, in install) { damage(t, in.bundle()) }},
		{name: "other head", cwd: ".", change: func(r *attest.Request) { r.Target.HeadSHA = r.Target.BaseSHA }},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := newInstall(t, c.cwd)
			h := openHarness(t, in)
			if c.prepare != nil {
				c.prepare(t, in)
			}
			raw := in.request(t, h.Broker, 1, c.change)
			o := h.Execute(t.Context(), in.input(raw))
			if o.Status != wire.Failed || !strings.Contains(o.Reason, c.reason) {
				t.Errorf("outcome = %+v, want %q", o, c.reason)
			}
			if row := h.row(t, raw); row.State != ledger.Failed || row.Capability != nil {
				t.Errorf("row = %+v", row)
			}
			checkDiagnostic(t, in, raw, wire.FaultRefusedInput)
			checkClean(t, in)
		})
	}
}

func TestRealDirectoryAsCwd(t *testing.T) {
	in := newInstall(t, "sub/dir")
	h := openHarness(t, in)
	if o := h.Execute(t.Context(), in.input(in.request(t, h.Broker, 1, nil))); o.Status != wire.Complete {
		t.Errorf("outcome = %+v", o)
	}
}

// TestOwnFaultBeforeTheJob: the gateway's own trouble costs the request nothing.
func TestOwnFaultBeforeTheJob(t *testing.T) {
	for name, breakIt := range map[string]func(in install, h *harness) (mend func()){
		"no key": func(in install, h *harness) func() {
			load := h.LoadKey
			h.LoadKey = func() (Signer, error) { return nil, errors.New("no key") }
			return func() { h.LoadKey = load }
		},
		"no mount": func(in install, h *harness) func() {
			mount := h.Mount
			h.Mount = func(string, int64) error { return errors.New("no mount") }
			return func() { h.Mount = mount }
		},
		"no bundle": func(in install, h *harness) func() {
			os.Rename(in.bundle(), in.bundle()+"2")
			return func() { os.Rename(in.bundle()+"2", in.bundle()) }
		},
		"outbox open to all": func(in install, h *harness) func() {
			os.Chmod(h.Config.Outbox, 0o777)
			return func() { os.Chmod(h.Config.Outbox, 0o700) }
		},
		"clock jumps before the launch": func(in install, h *harness) func() {
			now := h.Now
			h.runtime.before = func() { h.Now = func() time.Time { return now().Add(121 * time.Second) } }
			return func() { h.Now, h.runtime.before = now, nil }
		},
		"clock set back before the launch": func(in install, h *harness) func() {
			now := h.Now
			h.runtime.before = func() { h.Now = func() time.Time { return now().Add(-time.Hour) } }
			return func() { h.Now, h.runtime.before = now, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, h := newHarness(t)
			raw := in.request(t, h.Broker, 1, nil)
			mend := breakIt(in, h)
			if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Retry || h.runtime.starts != 0 {
				t.Errorf("outcome = %+v after %d starts", o, h.runtime.starts)
			}
			if row := h.row(t, raw); row != nil {
				t.Errorf("row = %+v", row)
			}
			checkClean(t, in)
			mend()
			if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
				t.Errorf("afterwards: %+v", o)
			}
		})
	}
}

// slowStore lets the clock jump while the ledger is asked to allow the launch.
type slowStore struct {
	Store
	jump func()
}

func (s slowStore) SetExecuting(ctx context.Context, key string, now time.Time) error {
	defer s.jump()
	return s.Store.SetExecuting(ctx, key, now)
}

// TestExpiryAfterTheLedgersWord: the job does not start either if the time ran
// out while the ledger wrote; but then the number is spent.
func TestExpiryAfterTheLedgersWord(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	h.Store = slowStore{h.Store, func() { h.Now = func() time.Time { return time.Now().Add(121 * time.Second) } }}
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Failed || h.runtime.starts != 0 {
		t.Errorf("outcome = %+v after %d starts", o, h.runtime.starts)
	}
	if row := h.row(t, raw); row.State != ledger.Failed {
		t.Errorf("row = %+v", row)
	}
}

func TestCancel(t *testing.T) {
	t.Run("before the launch", func(t *testing.T) {
		in, h := newHarness(t)
		raw := in.request(t, h.Broker, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		h.runtime.before = cancel
		if o := h.Execute(ctx, in.input(raw)); o.Status != wire.Retry {
			t.Errorf("outcome = %+v", o)
		}
		if h.row(t, raw) != nil || h.runtime.starts != 0 {
			t.Error("the request was spent")
		}
		checkClean(t, in)
	})
	t.Run("while it runs", func(t *testing.T) {
		in, h := newHarness(t)
		raw := in.request(t, h.Broker, 1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		h.runtime.job = func(ctx context.Context, _ sandbox.Spec, r *sandbox.Result) error {
			cancel()
			<-ctx.Done()
			r.Exited, r.Fault = false, sandbox.FaultCancelled
			return nil
		}
		if o := h.Execute(ctx, in.input(raw)); o.Status != wire.Failed || !strings.Contains(o.Reason, "cancelled") {
			t.Errorf("outcome = %+v", o)
		}
		if row := h.row(t, raw); row.State != ledger.Failed {
			t.Errorf("row = %+v", row)
		}
		checkDiagnostic(t, in, raw, wire.FaultCancelled)
		checkClean(t, in)
	})
}

// TestTwoAtOnce: while one process works on a request, another one is told to
// come back, and nothing of the first is swept away.
func TestTwoAtOnce(t *testing.T) {
	in, h := newHarness(t)
	raw := in.request(t, h.Broker, 1, nil)
	second := openHarness(t, in)
	h.runtime.job = func(ctx context.Context, spec sandbox.Spec, _ *sandbox.Result) error {
		if o := second.Execute(ctx, in.input(raw)); o.Status != wire.Retry || !strings.Contains(o.Reason, "another process") {
			t.Errorf("second outcome = %+v", o)
		}
		must(t, second.Sweep())
		if row := second.row(t, raw); row.State != ledger.Executing {
			t.Errorf("row = %+v", row)
		}
		_, err := os.Stat(filepath.Join(spec.Workspace, "README.md"))
		return err
	}
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
		t.Errorf("outcome = %+v", o)
	}
	if o := second.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete || second.runtime.starts != 0 {
		t.Errorf("afterwards: %+v", o)
	}
}

func TestExitCodeIsSigned(t *testing.T) {
	in, h := newHarness(t)
	h.runtime.job = func(_ context.Context, _ sandbox.Spec, r *sandbox.Result) error { r.ExitCode = 3; return nil }
	raw := in.request(t, h.Broker, 1, func(r *attest.Request) { r.Profile.ExitCode = 3 })
	if o := h.Execute(t.Context(), in.input(raw)); o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	if v := verifyEvidence(t, in, raw, in.evidence()); v.ExitCode != 3 {
		t.Errorf("exit code = %d", v.ExitCode)
	}
	// A prediction that is not met is still authentic evidence.
	raw = in.request(t, h.Broker, 2, nil)
	i := in.input(raw)
	i.EvidenceDir += "2"
	if o := h.Execute(t.Context(), i); o.Status != wire.Complete {
		t.Errorf("outcome = %+v", o)
	}
}

func TestWrongKeyPair(t *testing.T) {
	in, h := newHarness(t)
	other := filepath.Join(in.Dir, "other.pem")
	_, _, err := GenerateKey(other)
	must(t, err)
	h.Config.Key = other
	if o := h.Execute(t.Context(), in.input(in.request(t, h.Broker, 1, nil))); o.Status != wire.Retry || !strings.Contains(o.Reason, "keyId") {
		t.Errorf("outcome = %+v", o)
	}
}
