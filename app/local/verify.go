package local

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/runner/quarantine"
	"underwrite/store/blob"
)

// VerifyOptions say what to verify and what the reader knows by itself.
type VerifyOptions struct {
	EvidenceDir  string
	PublicKey    string // PEM file
	SourceBundle string // file with the frozen bundle; empty if the reader has none
	Expect       string // file with the request as it was reserved; excludes Claims
	Claims       Claims

	// inspect replaces the quarantine in tests.
	inspect func(scratch string, l attest.Limits) evidence.Inspector
}

// The verdicts of a verification beside Contradicted, which here too means
// authentic evidence whose exit code is not the predicted one.
const (
	Verified       = "verified"        // all of it is as the reader expects
	Invalid        = "invalid"         // it is not what the reader expects
	SelfConsistent = "self_consistent" // authentic; the reader's expectation left something open
	CouldNotCheck  = "could_not_check"
)

// Report is what a verification found out.
type Report struct {
	Verdict       string          `json:"verdict"`
	Reason        string          `json:"reason"`    // one line for people
	ExitCode      *int64          `json:"exit_code"` // as signed; nil unless authentic
	Expected      *int64          `json:"expected"`
	ReceiptSHA256 string          `json:"receipt_sha256"`
	KeyID         string          `json:"key_id"`
	Checked       []evidence.Step `json:"checked"`
	NotChecked    []Open          `json:"not_checked"`
	Notes         []string        `json:"notes"` // what no such verification can tell
}

// Unchecked is the report of a verification that ended with an error.
func Unchecked(err error) *Report {
	return &Report{Verdict: CouldNotCheck, Reason: err.Error(), Checked: []evidence.Step{}, NotChecked: []Open{}, Notes: []string{}}
}

// Open is something that was not checked, and what would allow it.
type Open struct {
	Name   string `json:"name"`
	Remedy string `json:"remedy"`
}

// Status is the command's exit code.
func (r *Report) Status() int {
	switch r.Verdict {
	case Verified:
		return 0
	case Invalid, Contradicted:
		return 1
	case SelfConsistent:
		return 3
	}
	return 2
}

// Verify checks evidence against what the reader knows. An error means that it
// could not be checked.
func Verify(ctx context.Context, o VerifyOptions) (report *Report, err error) {
	v := &verifying{VerifyOptions: o, report: &Report{Checked: []evidence.Step{}, NotChecked: []Open{}, Notes: []string{}}}
	if err := v.readInputs(); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "underwrite-verify-*")
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	err = v.run(ctx, tmp)
	switch {
	case ctx.Err() != nil:
		return nil, ErrInterrupted
	case errors.Is(err, evidence.ErrInvalid), errors.Is(err, evidence.ErrTransport):
		v.report.Verdict, v.report.Reason = Invalid, err.Error()
	case err != nil:
		return nil, err
	}
	return v.report, nil
}

// verifying is one call of Verify.
type verifying struct {
	VerifyOptions
	report *Report

	key     *ecdsa.PublicKey
	keyID   string
	own     bool   // the request is the reader's own, not the evidence's
	request []byte // canonical
	parsed  attest.Request
}

// readInputs reads what the reader brings. Errors are the reader's.
func (v *verifying) readInputs() (err error) {
	if v.key, err = readPublicKey(v.PublicKey); err != nil {
		return err
	}
	if v.keyID, err = attest.KeyID(v.key); err != nil {
		return fmt.Errorf("--key %s: %w", v.PublicKey, err)
	}
	if info, err := os.Stat(v.EvidenceDir); err != nil {
		return fmt.Errorf("evidence directory: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("evidence directory: %s is not a directory", v.EvidenceDir)
	}
	if v.SourceBundle != "" {
		if info, err := os.Stat(v.SourceBundle); err != nil {
			return fmt.Errorf("--source-bundle: %w", err)
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("--source-bundle: %s is no file", v.SourceBundle)
		}
	}
	if v.Expect == "" {
		return nil
	}
	if !v.Claims.empty() {
		return errors.New("--expect is a complete expectation: leave out the flags that name single parts of one")
	}
	v.own = true
	v.request, v.parsed, err = readExpectation(v.Expect, v.EvidenceDir)
	return err
}

// readExpectation reads a request in any formatting. One that lies in the
// evidence directory says nothing about it.
func readExpectation(path, evidenceDir string) ([]byte, attest.Request, error) {
	fail := func(err error) ([]byte, attest.Request, error) {
		return nil, attest.Request{}, fmt.Errorf("--expect %s: %w", path, err)
	}
	inside, err := sameDir(filepath.Dir(path), evidenceDir)
	if err != nil {
		return fail(err)
	}
	if inside {
		return fail(errors.New("it lies in the evidence directory, so it is no independent expectation: name the file that was made when the run was asked for"))
	}
	_, text, err := readInput(path, nil, attest.MaxRequestBytes)
	if err != nil {
		return fail(err)
	}
	value, err := attest.ReadJSON(text)
	if err != nil {
		return fail(err)
	}
	canonical, err := attest.CanonicalJSON(value)
	if err != nil {
		return fail(err)
	}
	request, err := attest.ParseRequest(canonical)
	if err != nil {
		return fail(err)
	}
	return canonical, request, nil
}

func sameDir(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}

func readPublicKey(path string) (*ecdsa.PublicKey, error) {
	const maxKey = 16 << 10 // bytes; a P-256 key takes 178
	_, text, err := readInput(path, nil, maxKey)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	key, err := attest.ParsePublicKeyPEM(text)
	if err != nil {
		return nil, fmt.Errorf("public key %s: %w: name the file that `underwrite keygen` or prove wrote", path, err)
	}
	return key, nil
}

func (v *verifying) run(ctx context.Context, tmp string) error {
	if !v.own {
		if err := v.adopt(); err != nil {
			return err
		}
	}
	if v.parsed.Profile.KeyID != v.keyID {
		return v.fail("key", fmt.Sprintf("the request names key %s, but --key is %s", v.parsed.Profile.KeyID, v.keyID))
	}
	blobs, err := blob.Create(filepath.Join(tmp, "blobs"))
	if err != nil {
		return err
	}
	files, err := evidence.Read(v.EvidenceDir, blobs, evidence.LimitsFor(v.parsed.Profile.Sandbox.Limits))
	if err != nil {
		return err
	}
	if !v.own && !bytes.Equal(files.Request, v.request) {
		return fmt.Errorf("%w: the request changed while it was read", evidence.ErrTransport)
	}
	v.pass("evidence directory", "exactly the six files, unchanged while they were read")
	inspector, err := v.inspector(tmp, files)
	if err != nil {
		return err
	}
	result, err := evidence.Verify(ctx, files, blobs, evidence.Expectation{
		Request: v.request, SourceBundle: v.SourceBundle, Inspector: inspector, Now: time.Now(),
		Trust: evidence.Trust{{Public: v.key, SignerID: v.parsed.Profile.SignerID, ExecutorIDs: []string{v.parsed.Profile.ExecutorID}}},
	})
	v.takeSteps(result.Steps)
	if refused := new(quarantine.RefusedError); errors.As(err, &refused) && !errors.Is(err, evidence.ErrInvalid) {
		err = fmt.Errorf("%w: %w", evidence.ErrInvalid, err) // the reader's bundle is not the frozen one
	}
	if err != nil {
		return err
	}
	v.report.ReceiptSHA256 = attest.SHA256Hex(files.Receipt)
	v.judge(result)
	return nil
}

// adopt takes the request from the evidence, after comparing it with what the
// reader claims.
func (v *verifying) adopt() (err error) {
	if v.request, err = evidence.ReadRequest(v.EvidenceDir); err != nil {
		return err
	}
	if v.parsed, err = attest.ParseRequest(v.request); err != nil {
		return v.fail("request", err.Error())
	}
	steps, err := v.Claims.compare(v.parsed)
	v.report.Checked = append(v.report.Checked, steps...)
	return err
}

// inspector looks into the bundles. Without a source bundle the input tree is
// what the envelopes claim, and the report says so.
func (v *verifying) inspector(tmp string, f *evidence.Files) (evidence.Inspector, error) {
	scratch := filepath.Join(tmp, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return nil, err
	}
	limits := v.parsed.Profile.Sandbox.Limits
	var i evidence.Inspector
	if v.inspect != nil {
		i = v.inspect(scratch, limits)
	} else {
		i = evidence.QuarantineFor(scratch, v.parsed.Target.ObjectBundleBytes, limits)
	}
	if v.SourceBundle != "" {
		return i, nil
	}
	claimed, err := attest.ClaimedReceipt(f.Capability, f.Receipt)
	if err != nil {
		return nil, v.fail("capability and receipt", err.Error())
	}
	return claimedTree{i, claimed.InputTree}, nil
}

// claimedTree takes the input tree on trust.
type claimedTree struct {
	evidence.Inspector
	tree string
}

func (c claimedTree) InputTree(context.Context, string, attest.Target) (string, error) {
	return c.tree, nil
}

// Names of evidence.Verify's steps.
const (
	sourceStep = "source bundle"
	trustStep  = "trust"
)

func (v *verifying) takeSteps(steps []evidence.Step) {
	for _, s := range steps {
		if s.Name == sourceStep && v.SourceBundle == "" {
			continue
		}
		if s.Name == trustStep && s.OK && !v.own { // signer and executor were compared before, or are open
			s = evidence.Step{Name: "key", OK: true, Detail: v.keyID + " is the one that the request names"}
		}
		v.report.Checked = append(v.report.Checked, s)
	}
}

func (v *verifying) pass(name, detail string) {
	v.report.Checked = append(v.report.Checked, evidence.Step{Name: name, OK: true, Detail: detail})
}

func (v *verifying) fail(name, detail string) error {
	v.report.Checked = append(v.report.Checked, evidence.Step{Name: name, Detail: detail})
	return fmt.Errorf("%w: %s: %s", evidence.ErrInvalid, name, detail)
}

// judge says what authentic evidence is worth to this reader.
func (v *verifying) judge(r *evidence.Result) {
	report := v.report
	report.ExitCode, report.Expected, report.KeyID = &r.ExitCode, &r.Predicted, r.KeyID
	if v.SourceBundle == "" {
		report.NotChecked = append(report.NotChecked, Open{sourceStep, "the input tree is only what the receipt says; give --source-bundle"})
	}
	if !v.own {
		report.NotChecked = append(report.NotChecked, v.Claims.open()...)
	}
	report.Notes = v.notes()
	predicted := v.own || v.Claims.Profile != ""
	switch {
	case r.Contradicted && predicted:
		report.Verdict = Contradicted
		report.Reason = fmt.Sprintf("authentic, but the exit code is %d and %d was predicted", r.ExitCode, r.Predicted)
	case len(report.NotChecked) > 0:
		report.Verdict = SelfConsistent
		report.Reason = fmt.Sprintf("authentic and consistent with itself, exit code %d; not everything was checked", r.ExitCode)
	default:
		report.Verdict = Verified
		report.Reason = fmt.Sprintf("as expected, exit code %d", r.ExitCode)
	}
}

func (v *verifying) notes() []string {
	notes := []string{
		"A run proves that the pinned command ended so on this exact tree; it does not assess code quality, security or mergeworthiness.",
		"No record is kept: a second use of the same evidence looks like the first.",
	}
	if !v.own {
		notes = append(notes, "Session, challenge, base, diff and context are the evidence's own: signed, but compared with nothing.")
	}
	return notes
}
