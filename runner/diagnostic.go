package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"underwrite/attest"
	"underwrite/runner/wire"
)

// diagnosticSubject names what a diagnostic is about: the exact request bytes.
const diagnosticSubject = "underwrite-execution-request"

// diagnose writes a signed statement about an attempt without a receipt, for
// whoever looks into it later. It decides nothing.
func (a *attempt) diagnose(f *fault) error {
	if a.in.Diagnostics == "" {
		return nil
	}
	if err := a.loadKey(); err != nil {
		return err
	}
	executor, err := a.executorID()
	if err != nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{
		"_type":         attest.StatementType,
		"subject":       []any{map[string]any{"name": diagnosticSubject, "digest": map[string]string{"sha256": a.requestSHA256}}},
		"predicateType": wire.DiagnosticPredicate,
		"predicate": wire.Diagnostic{
			Version: 1, ExecutorID: executor, SessionID: a.request.SessionID, Challenge: a.request.Challenge,
			Fault: f.Fault, Usage: a.usage, IssuedAt: attest.FormatTimestamp(a.Now()),
		},
	})
	if err != nil {
		return err
	}
	envelope, err := attest.Seal(attest.PayloadType, payload, a.signer.ID(), a.signer.Sign)
	if err != nil {
		return err
	}
	return writeNew(a.in.Diagnostics, a.key+".dsse.json", envelope)
}

// executorID is ours, also when the request named another.
func (a *attempt) executorID() (string, error) {
	if id := a.accepted.Trusted.ExecutorID; id != "" {
		return id, nil
	}
	profile, ok := a.Config.Profiles[a.request.ProfileName]
	if !ok {
		return "", fmt.Errorf("there is no profile %q", a.request.ProfileName)
	}
	return a.Config.ExecutorID(profile.RootDigest(), a.Host)
}

// writeNew makes a file appear complete, or leaves the one that is there.
func writeNew(dir, name string, data []byte) (err error) {
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces what an earlier attempt wrote.
	if err := os.Link(f.Name(), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncPath(dir)
}
