package apptest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"underwrite/app/apptest"
	"underwrite/attest"
	"underwrite/attest/gittree"
	"underwrite/handlers/freeze"
	"underwrite/runner/confine"
	"underwrite/runner/policy"
	"underwrite/runner/quarantine"
	"underwrite/runner/wire"
)

func TestMain(m *testing.M) {
	confine.MaybeExec()
	os.Exit(m.Run())
}

// site is a gateway set up by the real commands, with a frozen pull request.
type site struct {
	dir     string
	binary  string
	cgroup  string // parent of its jobs' cgroups, below the root of each hierarchy
	frozen  *freeze.Frozen
	profile attest.Profile
	seq     int64
	input   func() (string, error) // the frozen head's tree
}

// siteSigner is the signer in siteConfig.
const siteSigner = "urn:underwrite:signer:example"

const siteConfig = `version: 1
deployment: example
signer: ` + siteSigner + `
key: DIR/key.pem
state: DIR/state
outbox: DIR/outbox
allowedUids: [UID]
proofArguments: true
repositories: [octo-org/*]
ceilings: {wallSeconds: 600, cpuSeconds: 600, memoryBytes: 536870912, processes: 64, workspaceBytes: 67108864, outputBytes: 65536}
capabilityLifetimeSeconds: 120
cgroupParent: CGROUP
profiles:
  shell:
    argv: [/bin/sh]
    environment: {LANG: C.UTF-8, PATH: "/usr/bin:/bin"}
    root: host
    cpus: 1
    limits: {wallSeconds: 300, cpuSeconds: 300, memoryBytes: 268435456, processes: 64, workspaceBytes: 8388608, outputBytes: 4096}
`

func (s *site) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// sites counts them, to give each its own cgroups.
var sites atomic.Int64

func newSite(t *testing.T) *site {
	t.Helper()
	s := newSiteOf(t, siteConfig)
	s.profile = s.profileOf(t, "shell")
	s.freeze(t, func(string) error { return nil })
	return s
}

// newSiteOf installs a gateway with this configuration, in which DIR, UID and
// CGROUP stand for what is the site's own.
func newSiteOf(t *testing.T, config string) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("sandboxes need root, and CI must run them")
		}
		t.Skip("sandboxes need root")
	}
	s := &site{dir: t.TempDir(), binary: apptest.Binary(t), cgroup: fmt.Sprintf("/underwrite-test-%d-%d", os.Getpid(), sites.Add(1))}
	s.input = sync.OnceValues(s.inputTree)
	text := strings.NewReplacer("DIR", s.dir, "UID", fmt.Sprint(os.Getuid()), "CGROUP", s.cgroup).Replace(config)
	must(t, os.WriteFile(s.path("gateway.yaml"), []byte(text), 0o600))
	s.command(t, "keygen", s.path("key.pem"))
	s.command(t, "gateway", "init", "--config", s.path("gateway.yaml"))
	t.Cleanup(func() { s.checkClean(t) })
	return s
}

func (s *site) profileOf(t *testing.T, name string) attest.Profile {
	t.Helper()
	p, err := attest.ParseProfile(s.command(t, "gateway", "profile", name, "--config", s.path("gateway.yaml")))
	must(t, err)
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs a subcommand that must succeed and returns its standard output.
func (s *site) command(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(s.binary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("underwrite %v: %v\n%s", args, err, &stderr)
	}
	return out
}

// freeze freezes a repository of two commits. add puts more into the second.
func (s *site) freeze(t *testing.T, add func(repo string) error) {
	t.Helper()
	repo := s.path("repo")
	must(t, os.Mkdir(repo, 0o755))
	must(t, git(repo, "init", "-q", "-b", "main"))
	must(t, os.WriteFile(filepath.Join(repo, "README.md"), []byte("hello\n"), 0o644))
	must(t, git(repo, "add", "."))
	must(t, git(repo, "commit", "-q", "-m", "base"))
	must(t, os.WriteFile(filepath.Join(repo, "tool"), []byte("#!/bin/sh\n"), 0o755))
	must(t, add(repo))
	must(t, git(repo, "add", "."))
	must(t, git(repo, "commit", "-q", "-m", "head"))
	must(t, os.Mkdir(s.path("frozen"), 0o700))
	var err error
	s.frozen, err = freeze.Local(t.Context(), repo, "HEAD~1", "HEAD", "octo-org/hello", 1, s.path("frozen"), freeze.DefaultLimits)
	must(t, err)
}

// request asks for a shell script, as a proof with a prediction.
func (s *site) request(t *testing.T, script string, exitCode int64) []byte {
	t.Helper()
	s.seq++
	p := s.profile
	p.Job.Argv = append(p.Job.Argv[:len(p.Job.Argv):len(p.Job.Argv)], "-c", script)
	p.ExitCode = exitCode
	raw, err := attest.Request{
		Version: 1, ProfileName: "shell", Profile: p, SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: s.frozen.Target, Action: attest.Action{Seq: s.seq, Beat: 1, Attempt: 1},
	}.Canonical()
	must(t, err)
	return raw
}

// checkClean requires that no mount, cgroup or scratch space is left.
func (s *site) checkClean(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if bytes.Contains(mounts, []byte(s.dir)) {
		t.Error("something is still mounted")
	}
	left, err := os.ReadDir(s.path("state", "scratch"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("scratch holds %v", left)
	}
	parents, _ := filepath.Glob("/sys/fs/cgroup/*" + s.cgroup)
	unified, _ := filepath.Glob("/sys/fs/cgroup" + s.cgroup)
	for _, parent := range append(parents, unified...) {
		jobs, err := filepath.Glob(filepath.Join(parent, "*", "cgroup.procs"))
		must(t, err)
		if len(jobs) > 0 {
			t.Errorf("cgroups are left: %v", jobs)
		}
		if err := os.Remove(parent); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}

// execution starts `underwrite execute` for a request.
func (s *site) execution(t *testing.T, request []byte, name string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	path := s.path(name + ".request.json")
	must(t, os.WriteFile(path, request, 0o600))
	cmd := exec.Command(s.binary, "execute", "--config", s.path("gateway.yaml"), "--request", path,
		"--source-bundle", s.frozen.BundlePath, "--evidence-dir", s.path("outbox", name),
		"--diagnostics", s.path("state", "diagnostics"), "--events-fd", "3")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	return cmd, &stdout
}

// execute runs it to its end.
func (s *site) execute(t *testing.T, request []byte, name string) (wire.Outcome, []wire.Event) {
	t.Helper()
	cmd, stdout := s.execution(t, request, name)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	must(t, cmd.Start())
	w.Close()
	var events []wire.Event
	must(t, wire.ReadEvents(r, func(e wire.Event) { events = append(events, e) }))
	cmd.Wait()
	return s.outcome(t, cmd, stdout), events
}

// outcome requires exactly one line and the exit code that belongs to it.
func (s *site) outcome(t *testing.T, cmd *exec.Cmd, stdout *bytes.Buffer) wire.Outcome {
	t.Helper()
	o, err := wire.ParseOutcome(stdout.Bytes())
	if err != nil {
		t.Fatalf("standard output is %q, process %s: %v", stdout, cmd.ProcessState, err)
	}
	if cmd.ProcessState.ExitCode() != o.ExitCode() {
		t.Errorf("outcome %s with %s", o.Status, cmd.ProcessState)
	}
	return o
}

// verify validates evidence against an expectation that is derived from our own
// request, the source bundle, the output bundle and the streams alone.
func (s *site) verify(t *testing.T, request []byte, dir string) (stdout string, v *attest.VerifiedReceipt) {
	t.Helper()
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return b
	}
	r, err := attest.ParseRequest(request)
	must(t, err)
	if !bytes.Equal(read(wire.RequestFile), request) {
		t.Error("request.json is another request")
	}
	key, err := attest.ParsePublicKeyPEM(readFile(t, s.path("key.pub.pem")))
	must(t, err)
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: siteSigner, Key: key})
	must(t, err)
	input, err := s.input()
	must(t, err)
	limits := treeLimits
	limits.WorkspaceBytes = max(limits.WorkspaceBytes, r.Profile.Sandbox.Limits.WorkspaceBytes)
	limits.BlobBytes = limits.WorkspaceBytes
	output, err := quarantine.VerifyOutput(t.Context(), filepath.Join(dir, wire.OutputFile), t.TempDir(), nil, limits)
	must(t, err)
	out, errs := read(wire.StdoutFile), read(wire.StderrFile)
	v, err = attest.VerifyReceipt(read(wire.CapabilityFile), read(wire.ReceiptFile), attest.ExpectedReceipt{
		Expected: attest.Expected{
			SignerID: siteSigner, ExecutorID: s.profile.ExecutorID, SessionID: r.SessionID, Challenge: r.Challenge,
			Target: s.frozen.Target, Action: r.Action, Job: r.Profile.Job, InputTree: input, Sandbox: r.Profile.Sandbox,
		},
		OutputTree: output.GitTree, OutputBundle: output, ExitCode: r.Profile.ExitCode,
		Stdout: attest.Stream{SHA256: attest.SHA256Hex(out), Bytes: int64(len(out))},
		Stderr: attest.Stream{SHA256: attest.SHA256Hex(errs), Bytes: int64(len(errs))},
	}, verify, time.Now())
	must(t, err)
	return string(out), v
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

var treeLimits = quarantine.Limits{
	BundleBytes: 1 << 30, WorkspaceBytes: 8 << 20, BlobBytes: 8 << 20, Entries: gittree.MaxEntries, Depth: gittree.MaxDepth,
	PathBytes: gittree.MaxPathBytes, TotalPathBytes: gittree.MaxTotalPathBytes,
}

// inputTree derives the frozen head's tree from the source bundle.
func (s *site) inputTree() (string, error) {
	ctx, dir := context.Background(), s.path("imported")
	defer os.RemoveAll(dir)
	src, err := quarantine.ImportSource(ctx, dir, s.frozen.BundlePath, s.frozen.Target, treeLimits)
	if err != nil {
		return "", err
	}
	tree, err := src.Walk(ctx, s.frozen.Target.HeadSHA, treeLimits)
	if err != nil {
		return "", err
	}
	return src.GitTree(ctx, tree)
}

func faultOf(events []wire.Event) string {
	for _, e := range events {
		if e.Fault != nil {
			return e.Fault.Kind
		}
	}
	return ""
}

func TestExecuteCommand(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		name, script string
		exit         int64
		stdout       string
	}{
		{"passes", "cat README.md; echo new > made; ls", 0, "hello\nREADME.md\nmade\ntool\n"},
		{"fails", "echo no >&2; exit 3", 3, ""},
		{"environment", `env | sort; test "$(id -u)" = 1000`, 0, "LANG=C.UTF-8\nPATH=/usr/bin:/bin\nPWD=/workspace\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := s.request(t, c.script, c.exit)
			o, events := s.execute(t, raw, c.name)
			if o.Status != wire.Complete || faultOf(events) != "" {
				t.Fatalf("outcome = %+v, events %+v", o, events)
			}
			stdout, v := s.verify(t, raw, o.EvidenceDir)
			if stdout != c.stdout || v.ExitCode != c.exit {
				t.Errorf("stdout = %q, exit code %d", stdout, v.ExitCode)
			}
			var live []byte
			for _, e := range events {
				live = append(live, e.Stdout...)
			}
			if string(live) != c.stdout {
				t.Errorf("live output = %q", live)
			}
		})
	}
}

// TestSandboxPolicy: what the executor's identity says of the sandbox is what a
// job finds in it.
func TestSandboxPolicy(t *testing.T) {
	s := newSite(t)
	var doc struct {
		Devices, Writable []string
		User              int
	}
	must(t, json.Unmarshal(policy.SandboxPolicy(), &doc))
	raw := s.request(t, `find /dev -type c | sort; echo; find / -type d -writable 2>/dev/null | grep -v "^/proc/" | sort; echo; id -u
grep -c "^Cap....	0000000000000000$" /proc/self/status; grep NoNewPrivs /proc/self/status; test -e /proc/self/fd/0 || echo closed`, 0)
	o, _ := s.execute(t, raw, "policy")
	if o.Status != wire.Complete {
		t.Fatalf("outcome = %+v", o)
	}
	stdout, _ := s.verify(t, raw, o.EvidenceDir)
	want := strings.Join(doc.Devices, "\n") + "\n\n" + strings.Join(doc.Writable, "\n") + "\n\n" + fmt.Sprint(doc.User) +
		"\n5\nNoNewPrivs:\t1\nclosed\n"
	if stdout != want {
		t.Errorf("the job finds\n%s\nthe policy says\n%s", stdout, want)
	}
}

func TestExecuteCommandWithoutReceipt(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ name, script, kind, reason string }{
		{"signal", "kill -SEGV $$", wire.FaultSignal, "SIGSEGV"},
		{"output", "while :; do echo xxxxxxxxxxxxxxxx; done", wire.FaultOutput, "too much output"},
		{"workspace", "dd if=/dev/zero of=big bs=65536; exit 0", wire.FaultWorkspace, "workspace is full"},
		{"empty-directory", "mkdir empty", wire.FaultUnsupportedOutput, "empty"},
		{"hard-link", "ln README.md second", wire.FaultUnsupportedOutput, "unsupported output: hard link: README.md"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := s.request(t, c.script, 0)
			o, events := s.execute(t, raw, c.name)
			if o.Status != wire.Failed || !strings.Contains(o.Reason, c.reason) || faultOf(events) != c.kind {
				t.Errorf("outcome = %+v, fault %q", o, faultOf(events))
			}
			if again, _ := s.execute(t, raw, c.name); again != o {
				t.Errorf("again: %+v", again)
			}
			if _, err := os.Lstat(s.path("outbox", c.name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("evidence exists: %v", err)
			}
		})
	}
}

// TestExecuteCommandRefusals: one line and its exit code, whatever is wrong.
func TestExecuteCommandRefusals(t *testing.T) {
	s := newSite(t)
	good := s.request(t, "true", 0)
	foreign := bytes.Replace(s.request(t, "true", 0), []byte(`"repo":"octo-org/hello"`), []byte(`"repo":"octo-orb/hello"`), 1)
	for _, c := range []struct {
		name   string
		raw    []byte
		status wire.Status
		reason string
		change func() (mend func())
	}{
		{name: "malformed", raw: []byte("{}"), status: wire.Failed, reason: "malformed"},
		{name: "policy", raw: foreign, status: wire.Failed, reason: "target.repo"},
		{name: "key", raw: good, status: wire.Retry, reason: "chmod 600 ", change: func() func() {
			must(t, os.Chmod(s.path("key.pem"), 0o644))
			return func() { must(t, os.Chmod(s.path("key.pem"), 0o600)) }
		}},
		{name: "ledger", raw: good, status: wire.Retry, reason: "ledger", change: func() func() {
			must(t, os.Rename(s.path("state/ledger.db"), s.path("state/ledger.old")))
			return func() { must(t, os.Rename(s.path("state/ledger.old"), s.path("state/ledger.db"))) }
		}},
		{name: "config", raw: good, status: wire.Retry, reason: "gateway.yaml:1: version: ", change: func() func() {
			text := readFile(t, s.path("gateway.yaml"))
			must(t, os.WriteFile(s.path("gateway.yaml"), bytes.Replace(text, []byte("version: 1"), []byte("version: 9"), 1), 0o600))
			return func() { must(t, os.WriteFile(s.path("gateway.yaml"), text, 0o600)) }
		}},
		{name: "mended", raw: good, status: wire.Complete},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				defer c.change()()
			}
			o, _ := s.execute(t, c.raw, c.name)
			if o.Status != c.status || !strings.Contains(o.Reason, c.reason) {
				t.Errorf("outcome = %+v, want %s with %q", o, c.status, c.reason)
			}
		})
	}
}

// startWaiting starts a job that waits, and returns when it runs.
func (s *site) startWaiting(t *testing.T, name string) (cmd *exec.Cmd, stdout *bytes.Buffer, raw []byte) {
	t.Helper()
	raw = s.request(t, "echo started; sleep 15", 0)
	cmd, stdout = s.execution(t, raw, name)
	r, w, err := os.Pipe()
	must(t, err)
	cmd.ExtraFiles = []*os.File{w}
	must(t, cmd.Start())
	w.Close()
	running := make(chan bool, 1)
	go func() {
		defer r.Close()
		wire.ReadEvents(r, func(e wire.Event) {
			if len(e.Stdout) > 0 {
				running <- true
			}
		})
		close(running)
	}()
	if !<-running {
		cmd.Wait()
		t.Fatalf("the job did not start: %s", stdout)
	}
	return cmd, stdout, raw
}

// TestTerminatedExecution: SIGTERM tears the sandbox down and tells so.
func TestTerminatedExecution(t *testing.T) {
	s := newSite(t)
	cmd, stdout, _ := s.startWaiting(t, "terminated")
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	cmd.Wait()
	if o := s.outcome(t, cmd, stdout); o.Status != wire.Failed || !strings.Contains(o.Reason, "cancelled") {
		t.Errorf("outcome = %+v", o)
	}
}

// TestKilledExecution: after SIGKILL the next execution ends the request, and
// nothing of its sandbox is left.
func TestKilledExecution(t *testing.T) {
	s := newSite(t)
	cmd, stdout, raw := s.startWaiting(t, "killed")
	must(t, cmd.Process.Kill())
	cmd.Wait()
	if stdout.Len() > 0 {
		t.Errorf("the killed process said %q", stdout)
	}
	if o, _ := s.execute(t, s.request(t, "true", 0), "next"); o.Status != wire.Complete {
		t.Errorf("the next request: %+v", o)
	}
	s.checkClean(t)
	if o, _ := s.execute(t, raw, "killed"); o.Status != wire.Failed || !strings.Contains(o.Reason, "ended while it worked") {
		t.Errorf("the killed request: %+v", o)
	}
}

// TestGatewayCommand: the resident gateway runs a request over its socket,
// stops one whose client is gone, and takes its executions along.
func TestGatewayCommand(t *testing.T) {
	s := newSite(t)
	gw := exec.Command(s.binary, "gateway", "run", "--config", s.path("gateway.yaml"), "--socket", s.path("gw.sock"))
	stdout, err := gw.StdoutPipe()
	must(t, err)
	var log bytes.Buffer
	gw.Stderr = &log
	must(t, gw.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			gw.Process.Kill()
			gw.Wait()
		}
		if t.Failed() {
			t.Logf("gateway: %s", &log)
		}
	})
	ready := make([]byte, 9)
	if _, err := io.ReadFull(stdout, ready); err != nil {
		t.Fatalf("the gateway did not start: %v", err)
	}
	c := wire.Client{Socket: s.path("gw.sock")}
	raw := s.request(t, "cat README.md", 0)
	o, err := c.Execute(t.Context(), raw, s.frozen.BundlePath, nil)
	if err != nil || o.Status != wire.Complete {
		t.Fatalf("Execute = %+v, %v", o, err)
	}
	if out, _ := s.verify(t, raw, o.EvidenceDir); out != "hello\n" {
		t.Errorf("stdout = %q", out)
	}
	must(t, c.Acknowledge(t.Context(), o.EvidenceDir))
	if _, err := os.Lstat(o.EvidenceDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("acknowledged evidence is still there: %v", err)
	}
	waiting := s.request(t, "echo started; sleep 15", 0)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = c.Execute(ctx, waiting, s.frozen.BundlePath, func(e wire.Event) {
		if len(e.Stdout) > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Execute = %v", err)
	}
	again, err := c.Execute(t.Context(), waiting, s.frozen.BundlePath, nil)
	for err == nil && again.Status == wire.Retry { // the stopped one still tears down
		time.Sleep(50 * time.Millisecond)
		again, err = c.Execute(t.Context(), waiting, s.frozen.BundlePath, nil)
	}
	if err != nil || again.Status != wire.Failed || !strings.Contains(again.Reason, "cancelled") {
		t.Errorf("the cancelled request: %+v, %v", again, err)
	}
	must(t, gw.Process.Signal(syscall.SIGTERM))
	ended = true
	if err := gw.Wait(); err != nil {
		t.Errorf("gateway ended with %v", err)
	}
}
