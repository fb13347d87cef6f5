package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/handlers/freeze"
	"underwrite/runner/gateway"
	"underwrite/runner/policy"
	"underwrite/runner/wire"
	"underwrite/store/blob"
)

// Phases of Prove beside those of an execution, which run between the two.
const (
	PhaseFreeze = "freeze"
	PhaseVerify = "verify"
)

// ErrInterrupted: the context ended. Everything was stopped and removed.
var ErrInterrupted = errors.New("interrupted")

// ProveOptions say what to prove.
type ProveOptions struct {
	Repo       string // work tree or bare repository
	Base, Head string // revisions
	Profile    *policy.ProfileFile
	Args       []string // appended to the profile's argv, if it allows that
	Expect     int64    // the predicted exit code, 0 to 255

	EvidenceDir string // to appear; empty for a new name in the current directory
	Key         string // signing key file; empty for one that is made for this run

	// Execute is the program and its first arguments to which the flags of
	// `underwrite execute` are added.
	Execute []string
	Host    policy.Host      // the same program and its runtime
	Events  func(wire.Event) // called for each event, never concurrently; may be nil
}

// The verdicts of a proof.
const (
	Passed       = "passed"       // authentic receipt, prediction met
	Contradicted = "contradicted" // authentic receipt, prediction not met
	Faulted      = "faulted"      // the job exceeded a limit or had no clean end: there is no receipt
	CouldNotRun  = "could_not_run"
)

// Proof is how a run ended. Paths are absolute.
type Proof struct {
	Verdict       string      `json:"verdict"`
	ExitCode      *int64      `json:"exit_code"` // as signed; nil without a receipt
	Expected      int64       `json:"expected"`
	Reason        string      `json:"reason"` // one line for people
	ReceiptSHA256 string      `json:"receipt_sha256"`
	EvidenceDir   string      `json:"evidence_dir"`
	PublicKey     string      `json:"public_key"`
	SourceBundle  string      `json:"source_bundle"`
	Expectation   string      `json:"expectation"` // what VerifyOptions.Expect takes
	Diagnostic    string      `json:"diagnostic,omitempty"`
	Fault         *wire.Fault `json:"fault,omitempty"` // as signed in the diagnostic
	Base          string      `json:"base,omitempty"`  // commits
	Head          string      `json:"head,omitempty"`
	InputTree     string      `json:"input_tree,omitempty"`
	OutputTree    string      `json:"output_tree,omitempty"`
	KeyID         string      `json:"key_id,omitempty"`
	Seconds       float64     `json:"seconds"` // of the whole command

	Stdout, Stderr []byte `json:"-"` // the last bytes of the job's streams, hostile
}

const tailBytes = 2 << 10 // of each stream

// Prove runs the profile's job on the head revision and verifies the evidence.
// A returned proof has the verdict Passed, Contradicted or Faulted; an error
// means that nothing was proved. When ctx ends, the job is stopped and
// everything is removed before Prove returns.
func Prove(ctx context.Context, o ProveOptions) (proof *Proof, err error) {
	start := time.Now()
	if err := o.check(); err != nil {
		return nil, err
	}
	session := attest.NewUUID()
	out, err := newOutput(o.EvidenceDir, session)
	if err != nil {
		return nil, err
	}
	w, err := newWorkspace(policyCgroup)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.remove()) }()
	p := &proving{ProveOptions: o, session: session, out: out, work: w}
	proof, err = p.run(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	proof.Expected, proof.Seconds = o.Expect, time.Since(start).Seconds()
	return proof, nil
}

func (o ProveOptions) check() error {
	switch {
	case o.Expect < 0 || o.Expect > 255:
		return fmt.Errorf("--expect %d: want an exit code from 0 to 255", o.Expect)
	case len(o.Args) > 0 && !o.Profile.ProofArguments:
		return fmt.Errorf("the profile does not allow arguments after --: set proofArguments: true in it, or leave them out")
	}
	return nil
}

// proving is one call of Prove.
type proving struct {
	ProveOptions
	session string
	out     *output
	work    *workspace

	frozen  *freeze.Frozen
	config  *policy.Config
	profile attest.Profile
	request []byte // canonical: the expectation
	trust   evidence.Trust
}

func (p *proving) run(ctx context.Context) (*Proof, error) {
	p.phase(PhaseFreeze)
	var err error
	p.frozen, err = freeze.Local(ctx, p.Repo, p.Base, p.Head, repositoryName(p.Repo), 1, p.work.path("frozen"), freeze.Limits{})
	if err != nil {
		return nil, fmt.Errorf("cannot freeze %s: %w", p.Repo, err)
	}
	if err := p.install(ctx); err != nil {
		return nil, err
	}
	if err := p.reserve(); err != nil {
		return nil, err
	}
	outcome, stderr, err := gateway.Execution{
		Program: p.Execute, ConfigPath: p.work.path("gateway.yml"), RequestPath: p.work.path("request.json"),
		BundlePath: p.frozen.BundlePath, EvidenceDir: filepath.Join(p.config.Outbox, "evidence"),
		Diagnostics: p.config.Diagnostics, Events: p.Events,
	}.Run(ctx)
	if err != nil {
		return nil, errors.Join(err, operatorLines(stderr))
	}
	switch outcome.Status {
	case wire.Complete:
		return p.verify(ctx, outcome.EvidenceDir)
	case wire.Failed:
		return p.fault(outcome)
	}
	return nil, errors.New(outcome.Reason)
}

// operatorLines is what the execution had to say to its operator, if anything.
func operatorLines(stderr []byte) error {
	if text := strings.TrimSpace(string(stderr)); text != "" {
		return errors.New(text)
	}
	return nil
}

func (p *proving) phase(name string) {
	if p.Events != nil {
		p.Events(wire.Event{Time: time.Now().UTC(), Phase: name})
	}
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// repositoryName is what receipts call a local repository: "local/" and the
// name of its directory.
func repositoryName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	name := notInNames.ReplaceAllString(strings.TrimSuffix(filepath.Base(dir), ".git"), "-")
	if name = strings.Trim(name, ".-"); name == "" {
		name = "repository"
	}
	return "local/" + name[:min(len(name), 100)]
}

// reserve writes the request down before anything runs. It is what the
// evidence will be compared with.
func (p *proving) reserve() error {
	p.profile.Job.Argv = append(p.profile.Job.Argv[:len(p.profile.Job.Argv):len(p.profile.Job.Argv)], p.Args...)
	p.profile.ExitCode = p.Expect
	r := attest.Request{
		Version: 1, ProfileName: profileName, Profile: p.profile, SessionID: p.session, Challenge: attest.NewChallenge(),
		Target: p.frozen.Target, Action: attest.Action{Seq: 1, Beat: 1, Attempt: 1},
	}
	var refusal *policy.Refusal
	if _, err := p.config.Accept(r, p.profile.KeyID, p.Host); errors.As(err, &refusal) {
		return fmt.Errorf("cannot run: %s", refusal.Reason)
	} else if err != nil {
		return err
	}
	var err error
	if p.request, err = r.Canonical(); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	return blob.WriteFile(p.work.path("request.json"), p.request, 0o600)
}

// verify judges the evidence and publishes the verified copies.
func (p *proving) verify(ctx context.Context, dir string) (*Proof, error) {
	p.phase(PhaseVerify)
	limits := p.profile.Sandbox.Limits
	files, err := evidence.Read(dir, p.work.blobs, evidence.LimitsFor(limits))
	if err != nil {
		return nil, err
	}
	r, err := evidence.Verify(ctx, files, p.work.blobs, evidence.Expectation{
		Request: p.request, SourceBundle: p.frozen.BundlePath, Trust: p.trust, Now: time.Now(),
		Inspector: evidence.QuarantineFor(p.work.path("scratch"), p.config.SourceBundleBytes, limits),
	})
	if err != nil {
		return nil, fmt.Errorf("the evidence of this run does not verify, so nothing is proved: %w", err)
	}
	proof := &Proof{
		Verdict: Passed, ExitCode: &r.ExitCode, Reason: fmt.Sprintf("exit code %d, as predicted", r.ExitCode),
		ReceiptSHA256: attest.SHA256Hex(files.Receipt), EvidenceDir: p.out.dir,
		PublicKey: p.out.publicKey(), SourceBundle: p.out.sourceBundle(), Expectation: p.out.expectation(),
		Base: p.frozen.Target.BaseSHA, Head: p.frozen.Target.HeadSHA,
		InputTree: r.InputTree, OutputTree: r.Output.GitTree, KeyID: r.KeyID,
	}
	if r.Contradicted {
		proof.Verdict, proof.Reason = Contradicted, fmt.Sprintf("exit code %d, predicted %d", r.ExitCode, r.Predicted)
	}
	if proof.Stdout, err = p.work.blobs.Tail(files.Stdout, tailBytes); err != nil {
		return nil, err
	}
	if proof.Stderr, err = p.work.blobs.Tail(files.Stderr, tailBytes); err != nil {
		return nil, err
	}
	return proof, p.out.publish(p.published(files))
}
