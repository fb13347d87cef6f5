package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/runner/confine"
	"underwrite/runner/internal/signkey"
	"underwrite/runner/policy"
	"underwrite/runner/sandbox"
	"underwrite/runner/wire"
	"underwrite/store/ledger"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	if os.Getenv(crashEnv) != "" {
		crashChild()
	}
	os.Exit(m.Run())
}

// needRoot: the broker mounts workspaces and hands files to the guest's user.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("this test needs root, and CI must run it")
	}
	t.Skip("mounting a workspace needs root")
}

// install is an installed gateway with a source bundle, in one directory.
type install struct {
	Dir    string
	Target attest.Target
}

func (in install) config() string    { return filepath.Join(in.Dir, "gateway.yaml") }
func (in install) bundle() string    { return filepath.Join(in.Dir, "pr.bundle") }
func (in install) evidence() string  { return filepath.Join(in.Dir, "outbox", "evidence") }
func (in install) diagnose() string  { return filepath.Join(in.Dir, "diagnostics") }
func (in install) publicKey() string { return filepath.Join(in.Dir, "key.pub.pem") }

// exampleConfig has one profile whose job is never really executed here.
const exampleConfig = `version: 1
deployment: example
signer: urn:underwrite:signer:example
key: DIR/key.pem
state: DIR/state
outbox: DIR/outbox
diagnostics: DIR/diagnostics
proofArguments: true
repositories: [octo-org/*]
ceilings: {wallSeconds: 60, cpuSeconds: 60, memoryBytes: 1073741824, processes: 256, workspaceBytes: 268435456, outputBytes: 1048576}
capabilityLifetimeSeconds: 120
profiles:
  unit:
    argv: [/usr/bin/env, printf, hello]
    cwd: CWD
    environment: {LANG: C.UTF-8}
    root: host
    limits: {wallSeconds: 30, cpuSeconds: 30, memoryBytes: 134217728, processes: 64, workspaceBytes: 8388608, outputBytes: 1000}
`

func newInstall(t testing.TB, cwd string) install {
	t.Helper()
	needRoot(t)
	in := install{Dir: t.TempDir()}
	text := strings.NewReplacer("DIR", in.Dir, "CWD", cwd).Replace(exampleConfig)
	must(t, os.WriteFile(in.config(), []byte(text), 0o600))
	_, _, err := GenerateKey(filepath.Join(in.Dir, "key.pem"))
	must(t, err)
	must(t, Init(t.Context(), in.config()))
	once.Do(func() {
		path := filepath.Join(t.TempDir(), "pr.bundle")
		frozen.target = freeze(t, path)
		var err error
		frozen.bundle, err = os.ReadFile(path)
		must(t, err)
	})
	must(t, os.WriteFile(in.bundle(), frozen.bundle, 0o600))
	in.Target = frozen.target
	return in
}

// frozen is made once: most tests start from the same pull request.
var (
	once   sync.Once
	frozen struct {
		bundle []byte
		target attest.Target
	}
)

// freeze makes a small repository and the source bundle of its two commits.
func freeze(t testing.TB, bundle string) attest.Target {
	t.Helper()
	repo := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = repo
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + repo, "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=Mona", "GIT_AUTHOR_EMAIL=mona@example.com", "GIT_AUTHOR_DATE=1700000000 +0000",
			"GIT_COMMITTER_NAME=Mona", "GIT_COMMITTER_EMAIL=mona@example.com", "GIT_COMMITTER_DATE=1700000000 +0000"}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, content string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(repo, name), []byte(content), 0o644))
	}
	git("init", "-q", "-b", "main")
	write("README.md", "hello\n")
	git("add", ".")
	git("commit", "-q", "-m", "base")
	base := git("rev-parse", "HEAD")
	write("sub/dir/file", "content\n")
	must(t, os.Symlink("sub", filepath.Join(repo, "link")))
	git("add", ".")
	git("commit", "-q", "-m", "head")
	head := git("rev-parse", "HEAD")
	git("update-ref", "refs/underwrite/base", base)
	git("update-ref", "refs/underwrite/head", head)
	git("bundle", "create", "-q", bundle, "refs/underwrite/base", "refs/underwrite/head")
	f, err := os.Open(bundle)
	must(t, err)
	defer f.Close()
	sum, n, err := hashAll(f)
	must(t, err)
	id, repoName := int64(7), "mona/hello"
	return attest.Target{
		Version: 1, Kind: "github_pr", Repo: "octo-org/hello", Number: 1, State: "open", BaseSHA: base, HeadSHA: head,
		HeadRepoID: &id, HeadRepo: &repoName, HeadRef: "topic", MergeBaseSHA: base, ChangedFiles: 2,
		DiffSHA256: strings.Repeat("d", 64), DiffBytes: 1, TrustedContextSHA256: strings.Repeat("c", 64), TrustedContextBytes: 1,
		ObjectBundleSHA256: sum, ObjectBundleBytes: n,
	}
}

// request is what a controller sends for the action numbered seq.
func (in install) request(t testing.TB, b *Broker, seq int64, change func(*attest.Request)) []byte {
	t.Helper()
	keyID, err := b.Config.KeyID()
	must(t, err)
	p, err := b.Config.Derive("unit", keyID, b.Host)
	must(t, err)
	r := attest.Request{
		Version: 1, ProfileName: "unit", Profile: p, SessionID: "11111111-2222-3333-4444-555555555555",
		Challenge: attest.SHA256Hex(fmt.Append(nil, seq)), Target: in.Target, Action: attest.Action{Seq: seq, Beat: 1, Attempt: 1},
	}
	if change != nil {
		change(&r)
	}
	raw, err := r.Canonical()
	must(t, err)
	return raw
}

func (in install) input(request []byte) Input {
	return Input{Request: request, BundlePath: in.bundle(), EvidenceDir: in.evidence(), Diagnostics: in.diagnose()}
}

// fakeRuntime plays a job. It keeps the promises of sandbox.Runtime but one: it
// isolates nothing.
type fakeRuntime struct {
	mu     sync.Mutex
	starts int // jobs launched
	// job changes the workspace and the result of a run that would exit with 0.
	job func(ctx context.Context, spec sandbox.Spec, r *sandbox.Result) error
	// before is called before the launch.
	before func()
}

func (f *fakeRuntime) Version() string { return "fake 1" }

func (f *fakeRuntime) Run(ctx context.Context, spec sandbox.Spec) (sandbox.Result, error) {
	if f.before != nil {
		f.before()
	}
	if ctx.Err() != nil {
		return sandbox.Result{Fault: sandbox.FaultCancelled, Teardown: true}, nil
	}
	started, err := spec.BeforeLaunch()
	if err != nil {
		return sandbox.Result{Fault: sandbox.FaultExpired, Teardown: true}, nil
	}
	f.mu.Lock()
	f.starts++
	f.mu.Unlock()
	r := sandbox.Result{
		Exited: true, StartedAt: started, Elapsed: 1234567 * time.Nanosecond, Teardown: true,
		Usage: sandbox.Usage{Wall: time.Millisecond, CPU: time.Millisecond, Processes: 1, OutputBytes: 6},
	}
	if _, err := spec.Stdout.WriteString("hello\n"); err != nil {
		return r, err
	}
	if err := os.WriteFile(filepath.Join(spec.Workspace, "made"), []byte("by the job\n"), 0o755); err != nil {
		return r, err
	}
	if f.job != nil {
		err = f.job(ctx, spec, &r)
	}
	return r, err
}

// harness is a broker over a real ledger, with a fake runtime.
type harness struct {
	*Broker
	runtime *fakeRuntime
	ledger  *ledger.Ledger
	events  *recorder
	log     *bytes.Buffer
}

// recorded closes the stream and returns what was sent.
func (h *harness) recorded(t testing.TB) []wire.Event {
	t.Helper()
	h.Events.Close()
	var all []wire.Event
	must(t, wire.ReadEvents(&h.events.buf, func(e wire.Event) { all = append(all, e) }))
	return all
}

func openHarness(t testing.TB, in install) *harness {
	t.Helper()
	c, err := policy.Load(in.config())
	must(t, err)
	l, err := ledger.Open(context.Background(), c.LedgerPath())
	must(t, err)
	h := &harness{runtime: &fakeRuntime{}, ledger: l, events: &recorder{}, log: &bytes.Buffer{}}
	h.Broker = &Broker{
		Config: c, Host: policy.Host{BinarySHA256: strings.Repeat("b", 64), Runtime: h.runtime.Version()},
		Store: l, Runtime: h.runtime, Now: time.Now, Events: NewEvents(h.events), Log: h.log,
		LoadKey: func() (Signer, error) { return signkey.Load(c.Key) },
		Mount:   sandbox.MountWorkspace, Unmount: sandbox.UnmountWorkspace,
	}
	t.Cleanup(func() { l.Close() })
	return h
}

// newHarness installs a gateway and opens its broker.
func newHarness(t testing.TB) (install, *harness) {
	t.Helper()
	in := newInstall(t, ".")
	return in, openHarness(t, in)
}

// row returns the ledger's row of a request, or nil.
func (h *harness) row(t testing.TB, raw []byte) *ledger.Execution {
	t.Helper()
	e, err := h.ledger.Get(context.Background(), replayKey(t, raw))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	must(t, err)
	return e
}

func replayKey(t testing.TB, raw []byte) string {
	t.Helper()
	r, err := attest.ParseRequest(raw)
	must(t, err)
	job, err := attest.JobDigest(r.Profile.Job)
	must(t, err)
	key, err := attest.ReplayKey(r.Profile.SignerID, r.Profile.ExecutorID, r.SessionID, r.Challenge, r.Action, job)
	must(t, err)
	return key
}

// checkClean requires that nothing of an execution is left but its result.
func checkClean(t testing.TB, in install) {
	t.Helper()
	for _, dir := range []string{"state/scratch", "state/locks"} {
		left, err := os.ReadDir(filepath.Join(in.Dir, dir))
		must(t, err)
		if len(left) != 0 {
			t.Errorf("%s holds %v", dir, left)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if bytes.Contains(mounts, []byte(in.Dir)) {
		t.Error("a workspace is still mounted")
	}
}

// verifyEvidence checks an evidence directory as a consumer does: against its
// own expectation and hashes, with the public key alone.
func verifyEvidence(t testing.TB, in install, raw []byte, dir string) *attest.VerifiedReceipt {
	t.Helper()
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return b
	}
	if got := read(wire.RequestFile); !bytes.Equal(got, raw) {
		t.Errorf("request.json = %s, want %s", got, raw)
	}
	r, err := attest.ParseRequest(raw)
	must(t, err)
	pem, err := os.ReadFile(in.publicKey())
	must(t, err)
	key, err := attest.ParsePublicKeyPEM(pem)
	must(t, err)
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: r.Profile.SignerID, Key: key})
	must(t, err)
	bundle := read(wire.OutputFile)
	capability, receipt := read(wire.CapabilityFile), read(wire.ReceiptFile)
	input, output := treesOf(t, capability), treesOf(t, receipt)
	stream := func(b []byte) attest.Stream { return attest.Stream{SHA256: attest.SHA256Hex(b), Bytes: int64(len(b))} }
	v, err := attest.VerifyReceipt(capability, receipt, attest.ExpectedReceipt{
		Expected: attest.Expected{
			SignerID: r.Profile.SignerID, ExecutorID: r.Profile.ExecutorID, SessionID: r.SessionID, Challenge: r.Challenge,
			Target: r.Target, Action: r.Action, Job: r.Profile.Job, InputTree: input, Sandbox: r.Profile.Sandbox,
		},
		OutputTree: output, OutputBundle: attest.Bundle{GitTree: output, SHA256: attest.SHA256Hex(bundle), Bytes: int64(len(bundle))},
		Stdout: stream(read(wire.StdoutFile)), Stderr: stream(read(wire.StderrFile)), ExitCode: r.Profile.ExitCode,
	}, verify, time.Now())
	must(t, err)
	return v
}

// treesOf returns the subject's tree. The measured trees have their own test;
// here they are taken from the statement.
func treesOf(t testing.TB, envelope []byte) string {
	t.Helper()
	e, err := attest.ParseEnvelope(envelope)
	must(t, err)
	var s struct {
		Subject []struct{ Digest struct{ GitTree string } }
	}
	must(t, json.Unmarshal(e.Payload, &s))
	return s.Subject[0].Digest.GitTree
}
