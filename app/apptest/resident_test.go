package apptest_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"underwrite/attest"
	"underwrite/runner/wire"
)

// A guest is a profile of the gateway: what a test runs, and where it differs
// from the usual.
type guest struct {
	program string            // "sh", "node", "go"; Python if empty
	args    []string          // after the program; DIR is the site's directory
	cwd     string            // the repository's root if empty
	env     map[string]string // programEnvironment if nil
	cpus    int               // 2 if zero
	limits  attest.Limits     // fields that are zero are those of usualLimits
	predict int64             // exit code
}

// programOf is the executable of a guest. Scripts lie in testdata/guests, which
// the frozen repository has as guests.
func programOf(name string) string {
	switch name {
	case "sh":
		return "/bin/sh"
	case "node":
		if _, err := os.Stat("/usr/local/bin/node"); err == nil {
			return "/usr/local/bin/node"
		}
		return "/usr/bin/node"
	case "go":
		return filepath.Join(goRoot(), "bin/go")
	default:
		return "/usr/bin/python3"
	}
}

// goRoot is where the Go lies that runs these tests. A sandbox on the host's
// root shows it only below /usr.
var goRoot = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	root := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(root, "/usr/") {
		return "/usr/local/go"
	}
	return root
})

var programEnvironment = map[string]string{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}

const mib = 1 << 20

var usualLimits = attest.Limits{
	WallSeconds: 120, CPUSeconds: 60, MemoryBytes: 256 * mib, Processes: 64, WorkspaceBytes: 16 * mib, OutputBytes: 64 << 10,
}

func (g guest) withDefaults() guest {
	if g.env == nil {
		g.env = programEnvironment
	}
	g.cwd, g.cpus = cmp.Or(g.cwd, "."), cmp.Or(g.cpus, 2)
	l, u := g.limits, usualLimits
	g.limits = attest.Limits{
		WallSeconds: cmp.Or(l.WallSeconds, u.WallSeconds), CPUSeconds: cmp.Or(l.CPUSeconds, u.CPUSeconds),
		MemoryBytes: cmp.Or(l.MemoryBytes, u.MemoryBytes), Processes: cmp.Or(l.Processes, u.Processes),
		WorkspaceBytes: cmp.Or(l.WorkspaceBytes, u.WorkspaceBytes), OutputBytes: cmp.Or(l.OutputBytes, u.OutputBytes),
	}
	return g
}

// honest is the guest that shows that a gateway works.
var honest = guest{program: "sh", args: []string{"-c", "cat README.md; echo new > made"}}

const residentConfig = `version: 1
deployment: example
signer: ` + siteSigner + `
key: DIR/key.pem
state: DIR/state
outbox: DIR/outbox
allowedUids: [UID]
proofArguments: true
repositories: [octo-org/*]
ceilings: {wallSeconds: 600, cpuSeconds: 600, memoryBytes: 4294967296, processes: 4096, workspaceBytes: 1073741824, outputBytes: 16777216}
capabilityLifetimeSeconds: 120
concurrency: 4
cgroupParent: CGROUP
profiles: `

// resident is a site whose gateway runs all the time, with one profile for each
// guest.
type resident struct {
	*site
	client   wire.Client
	profiles map[string]attest.Profile
	predict  map[string]int64
	number   atomic.Int64
}

// newResident starts a gateway. When the test has ended, the gateway must still
// be the same process, end well, and leave nothing.
func newResident(t *testing.T, guests map[string]guest) *resident {
	t.Helper()
	guests = maps.Clone(guests)
	guests["honest"] = honest
	r := &resident{site: newSiteOf(t, residentConfig+profilesOf(t, guests)), profiles: map[string]attest.Profile{}, predict: map[string]int64{}}
	r.freeze(t, func(repo string) error {
		return errors.Join(
			os.CopyFS(filepath.Join(repo, "guests"), os.DirFS("testdata/guests")),
			os.Symlink("guests", filepath.Join(repo, "linked")),
		)
	})
	r.trust(t, guests)
	r.start(t)
	return r
}

// profilesOf is the configuration of the guests: JSON, which is YAML too.
func profilesOf(t *testing.T, guests map[string]guest) string {
	t.Helper()
	profiles := map[string]any{}
	for name, g := range guests {
		g = g.withDefaults()
		profiles[name] = map[string]any{
			"argv": append([]string{programOf(g.program)}, g.args...), "cwd": g.cwd, "environment": g.env, "root": "host",
			"cpus": g.cpus, "limits": g.limits,
		}
	}
	b, err := json.Marshal(profiles)
	must(t, err)
	return string(b) + "\n"
}

// trust derives the trusted profiles. The gateway tells one for each program,
// the others differ in what the guest says: it refuses them if that is wrong.
func (r *resident) trust(t *testing.T, guests map[string]guest) {
	t.Helper()
	told := map[string]attest.Profile{}
	for _, name := range slices.Sorted(maps.Keys(guests)) {
		g := guests[name].withDefaults()
		if _, ok := told[g.program]; !ok {
			told[g.program] = r.profileOf(t, name)
		}
		p := told[g.program]
		argv := []string{p.Job.Executable.Path}
		for _, arg := range g.args {
			argv = append(argv, strings.ReplaceAll(arg, "DIR", r.dir))
		}
		p.Job.Argv, p.Job.Cwd, p.Job.Environment, p.Sandbox.Limits = argv, g.cwd, g.env, g.limits
		r.profiles[name], r.predict[name] = p, g.predict
		r.profile = p // signer and executor are the same for all
	}
}

func (r *resident) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(r.binary, "gateway", "run", "--config", r.path("gateway.yaml"), "--socket", r.path("gw.sock"))
	cmd.Env = append(os.Environ(), "UNDERWRITE_TEST_SECRET="+secret)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	var log bytes.Buffer
	cmd.Stderr = &log
	must(t, cmd.Start())
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("the gateway has ended: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
		for line := range strings.Lines(log.String()) {
			if t.Failed() && !strings.Contains(line, `"level":"info"`) {
				t.Logf("gateway: %s", line)
			}
		}
	})
	ready := make([]byte, len("listening"))
	if _, err := io.ReadFull(stdout, ready); err != nil {
		t.Fatalf("the gateway did not start: %v\n%s", err, &log)
	}
	r.client = wire.Client{Socket: r.path("gw.sock")}
}

// secret is in the gateway's environment.
const secret = "s3cr3t-of-the-gateway"

// An ending is how the gateway answered one request.
type ending struct {
	raw     []byte // the request
	outcome wire.Outcome
	events  []wire.Event
}

// run asks the gateway to run a guest. watch, if not nil, sees each event while
// it runs.
func (r *resident) run(t *testing.T, name string, watch func(wire.Event)) ending {
	t.Helper()
	p, ok := r.profiles[name]
	if !ok {
		t.Fatalf("there is no guest %q", name)
	}
	p.ExitCode = r.predict[name]
	raw, err := attest.Request{
		Version: 1, ProfileName: name, Profile: p, SessionID: attest.NewUUID(), Challenge: attest.NewChallenge(),
		Target: r.frozen.Target, Action: attest.Action{Seq: r.number.Add(1), Beat: 1, Attempt: 1},
	}.Canonical()
	must(t, err)
	e := ending{raw: raw}
	e.outcome, err = r.client.Execute(t.Context(), raw, r.frozen.BundlePath, func(event wire.Event) {
		e.events = append(e.events, event)
		if watch != nil {
			watch(event)
		}
	})
	must(t, err)
	return e
}

// faults lists what the events say went wrong.
func (e ending) faults() (list []wire.Fault) {
	for _, event := range e.events {
		if event.Fault != nil {
			list = append(list, *event.Fault)
		}
	}
	return list
}

// usage is the last one that the events tell.
func (e ending) usage() (u wire.Usage) {
	for _, event := range e.events {
		if event.Usage != nil {
			u = *event.Usage
		}
	}
	return u
}

// evidence is what a guest that ended by itself left, verified.
type evidence struct {
	ending
	stdout, stderr string
	receipt        *attest.VerifiedReceipt
	files          []byte // the output bundle
}

// passes runs a guest that must get a receipt, which is verified.
func (r *resident) passes(t *testing.T, name string, watch func(wire.Event)) evidence {
	t.Helper()
	e := r.run(t, name, watch)
	if e.outcome.Status != wire.Complete || len(e.faults()) > 0 {
		t.Fatalf("%s: outcome = %+v, faults %+v, output %q", name, e.outcome, e.faults(), e.live())
	}
	v := evidence{ending: e}
	v.stderr = string(readFile(t, filepath.Join(e.outcome.EvidenceDir, wire.StderrFile)))
	v.files = readFile(t, filepath.Join(e.outcome.EvidenceDir, wire.OutputFile))
	if got := r.signedExitCode(t, e.outcome.EvidenceDir); got != r.predict[name] {
		t.Fatalf("%s: exit code %d, want %d\n%s%s", name, got, r.predict[name], readFile(t, filepath.Join(e.outcome.EvidenceDir, wire.StdoutFile)), v.stderr)
	}
	v.stdout, v.receipt = r.verify(t, e.raw, e.outcome.EvidenceDir)
	return v
}

// signedExitCode is what the receipt claims, for the message of a test that fails.
func (r *resident) signedExitCode(t *testing.T, dir string) int64 {
	t.Helper()
	claimed, err := attest.ClaimedReceipt(readFile(t, filepath.Join(dir, wire.CapabilityFile)), readFile(t, filepath.Join(dir, wire.ReceiptFile)))
	must(t, err)
	return claimed.ExitCode
}

// live is the end of the live output.
func (e ending) live() string {
	var b []byte
	for _, event := range e.events {
		b = append(append(b, event.Stdout...), event.Stderr...)
	}
	return string(b[max(0, len(b)-2<<10):])
}

// faulted runs a guest that must get no receipt but a signed diagnostic, which
// is verified. Afterwards the gateway must work.
func (r *resident) faulted(t *testing.T, name, kind string) wire.Diagnostic {
	t.Helper()
	e := r.run(t, name, nil)
	faults := e.faults()
	if e.outcome.Status != wire.Failed || len(faults) != 1 || faults[0].Kind != kind {
		t.Fatalf("%s: outcome = %+v, faults %+v, want one of kind %s; output %q", name, e.outcome, faults, kind, e.live())
	}
	evidenceDir := r.path("outbox", attest.SHA256Hex(e.raw))
	if _, err := os.Lstat(evidenceDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: there is evidence: %v", name, err)
	}
	d := r.diagnostic(t, e.raw)
	if d.Fault != faults[0] {
		t.Errorf("%s: signed is %+v, told was %+v", name, d.Fault, faults[0])
	}
	if u := e.usage(); d.Usage != u {
		t.Errorf("%s: signed is %+v, told was %+v", name, d.Usage, u)
	}
	r.works(t)
	return d
}

// works runs the honest guest.
func (r *resident) works(t *testing.T) {
	t.Helper()
	e := r.passes(t, "honest", nil)
	if e.stdout != "hello\n" {
		t.Errorf("the honest job wrote %q", e.stdout)
	}
	must(t, r.client.Acknowledge(t.Context(), e.outcome.EvidenceDir))
}

// diagnostic returns what the gateway signed about a request without a receipt.
func (r *resident) diagnostic(t *testing.T, raw []byte) wire.Diagnostic {
	t.Helper()
	request, err := attest.ParseRequest(raw)
	must(t, err)
	replay, err := request.ReplayKey()
	must(t, err)
	envelope := readFile(t, r.path("state", "diagnostics", replay+".dsse.json"))
	opened, err := attest.Open(envelope, attest.PayloadType, r.verifier(t))
	if err != nil {
		t.Fatalf("the diagnostic does not verify: %v", err)
	}
	var s struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		PredicateType string
		Predicate     wire.Diagnostic
	}
	dec := json.NewDecoder(bytes.NewReader(opened.Payload))
	dec.DisallowUnknownFields()
	must(t, dec.Decode(&s))
	if s.Type != attest.StatementType || s.PredicateType != wire.DiagnosticPredicate || len(s.Subject) != 1 ||
		!maps.Equal(s.Subject[0].Digest, map[string]string{"sha256": attest.SHA256Hex(raw)}) {
		t.Errorf("the diagnostic is about something else: %s", opened.Payload)
	}
	d := s.Predicate
	if d.Version != 1 || d.ExecutorID != r.profile.ExecutorID || d.SessionID != request.SessionID || d.Challenge != request.Challenge {
		t.Errorf("diagnostic = %+v", d)
	}
	issued, err := attest.ParseTimestamp(d.IssuedAt)
	if err != nil || time.Since(issued) < 0 || time.Since(issued) > time.Hour {
		t.Errorf("issuedAt = %q, %v", d.IssuedAt, err)
	}
	return d
}

func (r *resident) verifier(t *testing.T) attest.SignatureVerifier {
	t.Helper()
	key, err := attest.ParsePublicKeyPEM(readFile(t, r.path("key.pub.pem")))
	must(t, err)
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: siteSigner, Key: key})
	must(t, err)
	return verify
}
