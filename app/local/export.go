package local

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"underwrite/app/evidence"
	"underwrite/attest"
	"underwrite/runner/wire"
)

// The statements of an evidence directory that Export can write.
const (
	Receipt    = "receipt"
	Capability = "capability"
)

// bundleMediaType is a Sigstore bundle's, in the form that version 0.3 of the
// format prefers.
const bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// ExportOptions say what to export.
type ExportOptions struct {
	EvidenceDir string
	Statement   string // Receipt or Capability
	Output      string // file to make, which must not exist; empty for none
}

// Export returns the statement as a Sigstore bundle in JSON, with a newline at
// its end, and makes the output file if one is named. Nothing is verified: the
// directory must have the form of evidence, and both envelopes that of their
// statements.
func Export(o ExportOptions) ([]byte, error) {
	capability, receipt, err := evidence.ReadEnvelopes(o.EvidenceDir)
	if err != nil {
		return nil, err
	}
	if _, err := attest.ClaimedReceipt(capability, receipt); err != nil {
		return nil, fmt.Errorf("%s: %w", o.EvidenceDir, err)
	}
	name, envelope := wire.ReceiptFile, receipt
	switch o.Statement {
	case Receipt:
	case Capability:
		name, envelope = wire.CapabilityFile, capability
	default:
		return nil, fmt.Errorf("--statement %q: want %s or %s", o.Statement, Receipt, Capability)
	}
	bundle, err := sigstoreBundle(envelope)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(o.EvidenceDir, name), err)
	}
	if o.Output == "" {
		return bundle, nil
	}
	return bundle, writeExport(o.EvidenceDir, o.Output, bundle)
}

// sigstoreBundle puts an envelope into a Sigstore bundle that names the key by
// a hint. Payload, payload type and signature are the envelope's own. Its keyid
// moves to the hint, because cosign skips a signature whose keyid is neither
// empty nor the key's fingerprint as SSH writes it; nobody signed the keyid.
func sigstoreBundle(envelope []byte) ([]byte, error) {
	e, err := attest.ParseEnvelope(envelope)
	if err != nil {
		return nil, err
	}
	bundle, err := attest.CanonicalJSON(map[string]any{
		"mediaType":            bundleMediaType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": e.KeyID}},
		"dsseEnvelope": map[string]any{
			"payload":     base64.StdEncoding.EncodeToString(e.Payload),
			"payloadType": e.PayloadType,
			"signatures":  []any{map[string]any{"keyid": "", "sig": base64.StdEncoding.EncodeToString(e.Signature)}},
		},
	})
	if err != nil {
		return nil, err
	}
	return append(bundle, '\n'), nil
}

// writeExport makes the file, complete and durable. A crash leaves at most a
// directory ".underwrite-*" beside it.
func writeExport(evidenceDir, path string, bundle []byte) error {
	inside, err := sameDir(filepath.Dir(path), evidenceDir)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if inside {
		return fmt.Errorf("--output: %s lies in the evidence directory, which holds exactly its six files: name another place", path)
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("--output: %s exists: name another file or remove it", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--output: %w", err)
	}
	return (&output{path}).publish([]published{{path: path, data: bundle}})
}
