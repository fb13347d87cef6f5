package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"underwrite/attest"
	"underwrite/runner/wire"
)

// jobFaults are the kinds of fault that are the job's own doing. All others
// mean that it could not be run.
var jobFaults = []string{
	wire.FaultWall, wire.FaultCPU, wire.FaultMemory, wire.FaultProcesses, wire.FaultWorkspace, wire.FaultOutput,
	wire.FaultSignal, wire.FaultUnsupportedOutput,
}

var errDiagnostic = errors.New("unusable diagnostic")

// fault turns a definite end without a receipt into a proof, if it was the
// job's own fault by the signed diagnostic.
func (p *proving) fault(outcome wire.Outcome) (*Proof, error) {
	envelope, f, err := p.diagnostic()
	if err != nil {
		return nil, fmt.Errorf("%s (%w)", outcome.Reason, err)
	}
	if !slices.Contains(jobFaults, f.Kind) {
		return nil, errors.New(outcome.Reason)
	}
	proof := &Proof{
		Verdict: Faulted, Reason: outcome.Reason, Fault: &f,
		PublicKey: p.out.publicKey(), Diagnostic: p.out.diagnostic(),
		Base: p.frozen.Target.BaseSHA, Head: p.frozen.Target.HeadSHA, KeyID: p.profile.KeyID,
	}
	key, err := os.ReadFile(p.config.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	return proof, p.out.publish([]published{
		{path: p.out.publicKey(), data: key},
		{path: p.out.diagnostic(), data: envelope},
	})
}

// diagnostic reads the signed statement about this request.
func (p *proving) diagnostic() (envelope []byte, f wire.Fault, err error) {
	request, err := attest.ParseRequest(p.request)
	if err != nil {
		return nil, f, err
	}
	replay, err := request.ReplayKey()
	if err != nil {
		return nil, f, err
	}
	envelope, err = os.ReadFile(filepath.Join(p.config.Diagnostics, replay+".dsse.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, f, fmt.Errorf("%w: the execution left none", errDiagnostic)
	} else if err != nil {
		return nil, f, fmt.Errorf("%w: %w", errDiagnostic, err)
	}
	key := p.trust[0]
	verify, err := attest.NewVerifier(attest.TrustedKey{SignerID: key.SignerID, Key: key.Public})
	if err != nil {
		return nil, f, err
	}
	opened, err := attest.Open(envelope, attest.PayloadType, verify)
	if err != nil {
		return nil, f, fmt.Errorf("%w: %w", errDiagnostic, err)
	}
	f, err = statedFault(opened.Payload, attest.SHA256Hex(p.request))
	return envelope, f, err
}

// statedFault returns the fault that a diagnostic's statement reports about the
// request with this digest.
func statedFault(payload []byte, requestSHA256 string) (wire.Fault, error) {
	var s struct {
		Subject []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
		PredicateType string          `json:"predicateType"`
		Predicate     wire.Diagnostic `json:"predicate"`
	}
	if err := json.Unmarshal(payload, &s); err != nil {
		return wire.Fault{}, fmt.Errorf("%w: %w", errDiagnostic, err)
	}
	if s.PredicateType != wire.DiagnosticPredicate || len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != requestSHA256 {
		return wire.Fault{}, fmt.Errorf("%w: it is about another request", errDiagnostic)
	}
	return s.Predicate.Fault, nil
}
