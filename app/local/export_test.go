package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"underwrite/app/evidence"
	"underwrite/app/evidence/evidencetest"
	"underwrite/attest"
	"underwrite/runner/wire"
)

// sigstore is the part of the Sigstore bundle format that an export uses.
type sigstore struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	DSSEEnvelope struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			KeyID *string `json:"keyid"`
			Sig   []byte  `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
}

func TestExport(t *testing.T) {
	for statement, name := range map[string]string{Receipt: wire.ReceiptFile, Capability: wire.CapabilityFile} {
		t.Run(statement, func(t *testing.T) {
			w := newWorld(t)
			files := w.gateway.Files(t, w.run)
			evidencetest.Write(t, w.options.EvidenceDir, files)
			path := filepath.Join(t.TempDir(), "bundle.json")
			returned, err := Export(ExportOptions{w.options.EvidenceDir, statement, path})
			if err != nil {
				t.Fatal(err)
			}
			written, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(written, returned) {
				t.Errorf("file holds %q, %v, want %q", written, err, returned)
			}
			checkSigstore(t, returned, files[name], w.gateway)
		})
	}
}

// checkSigstore: the bundle holds exactly what the gateway signed.
func checkSigstore(t *testing.T, bundle, envelope []byte, g *evidencetest.Gateway) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(bundle))
	d.DisallowUnknownFields()
	var b sigstore
	if err := d.Decode(&b); err != nil {
		t.Fatal(err)
	}
	want, err := attest.ParseEnvelope(envelope)
	if err != nil {
		t.Fatal(err)
	}
	got := b.DSSEEnvelope
	if b.MediaType != "application/vnd.dev.sigstore.bundle.v0.3+json" || b.VerificationMaterial.PublicKey.Hint != g.KeyID {
		t.Errorf("media type %s, hint %s", b.MediaType, b.VerificationMaterial.PublicKey.Hint)
	}
	if !bytes.Equal(got.Payload, want.Payload) || got.PayloadType != want.PayloadType {
		t.Error("payload or its type changed")
	}
	if len(got.Signatures) != 1 || got.Signatures[0].KeyID == nil || *got.Signatures[0].KeyID != "" || !bytes.Equal(got.Signatures[0].Sig, want.Signature) {
		t.Errorf("signatures %+v, want %x alone without keyid", got.Signatures, want.Signature)
	}
	if !attest.VerifyASN1(g.Public(), attest.PAE(got.PayloadType, got.Payload), got.Signatures[0].Sig) {
		t.Error("the signature does not verify")
	}
}

// TestExportReencodes: an envelope in URL-safe base64 is exported in the
// standard one that the Sigstore format wants.
func TestExportReencodes(t *testing.T) {
	w := newWorld(t)
	files := w.gateway.Files(t, w.run)
	replace := strings.NewReplacer("+", "-", "/", "_")
	var e map[string]any
	if err := json.Unmarshal(files[wire.ReceiptFile], &e); err != nil {
		t.Fatal(err)
	}
	e["payload"] = replace.Replace(e["payload"].(string))
	s := e["signatures"].([]any)[0].(map[string]any)
	s["sig"] = replace.Replace(s["sig"].(string))
	urlSafe, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	files[wire.ReceiptFile] = urlSafe
	evidencetest.Write(t, w.options.EvidenceDir, files)
	bundle, err := Export(ExportOptions{EvidenceDir: w.options.EvidenceDir, Statement: Receipt})
	if err != nil {
		t.Fatal(err)
	}
	checkSigstore(t, bundle, urlSafe, w.gateway)
}

func TestExportRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string, o *ExportOptions)
		want  error  // nil: any
		say   string // part of the message
	}{
		"no directory": {func(t *testing.T, dir string, _ *ExportOptions) { try(t, os.RemoveAll(dir)) }, evidence.ErrTransport, ""},
		"missing file": {func(t *testing.T, dir string, _ *ExportOptions) {
			try(t, os.Remove(filepath.Join(dir, wire.StdoutFile)))
		}, evidence.ErrTransport, ""},
		"extra file": {func(t *testing.T, dir string, _ *ExportOptions) { writeFile(t, filepath.Join(dir, "more"), nil) }, evidence.ErrTransport, ""},
		"linked receipt": {func(t *testing.T, dir string, _ *ExportOptions) {
			receipt := filepath.Join(dir, wire.ReceiptFile)
			try(t, os.Rename(receipt, dir+"-receipt"))
			try(t, os.Symlink(dir+"-receipt", receipt))
		}, evidence.ErrTransport, wire.ReceiptFile},
		"large capability": {func(t *testing.T, dir string, _ *ExportOptions) {
			try(t, os.Truncate(filepath.Join(dir, wire.CapabilityFile), attest.MaxEnvelopeBytes+1))
		}, evidence.ErrTransport, wire.CapabilityFile},
		"no envelope": {func(t *testing.T, dir string, _ *ExportOptions) {
			writeFile(t, filepath.Join(dir, wire.ReceiptFile), []byte("{}"))
		}, attest.ErrEnvelope, "receipt: "},
		"capability as receipt": {func(t *testing.T, dir string, _ *ExportOptions) {
			b, err := os.ReadFile(filepath.Join(dir, wire.CapabilityFile))
			try(t, err)
			writeFile(t, filepath.Join(dir, wire.ReceiptFile), b)
		}, attest.ErrPredicateType, "receipt: "},
		"output exists":      {func(t *testing.T, _ string, o *ExportOptions) { writeFile(t, o.Output, nil) }, nil, "exists: name another file"},
		"output is evidence": {func(_ *testing.T, dir string, o *ExportOptions) { o.Output = filepath.Join(dir, "bundle.json") }, nil, "lies in the evidence directory"},
		"output nowhere":     {func(_ *testing.T, dir string, o *ExportOptions) { o.Output = filepath.Join(dir+"-absent", "b") }, os.ErrNotExist, "--output: "},
		"unknown statement":  {func(_ *testing.T, _ string, o *ExportOptions) { o.Statement = "diagnostic" }, nil, `--statement "diagnostic"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := w.options.EvidenceDir
			evidencetest.Write(t, dir, w.gateway.Files(t, w.run))
			o := ExportOptions{dir, Receipt, filepath.Join(t.TempDir(), "bundle.json")}
			c.spoil(t, dir, &o)
			_, err := Export(o)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("Export = %v, want %v with %q", err, c.want, c.say)
			}
			if info, err := os.Stat(o.Output); err == nil && info.Size() > 0 {
				t.Error("the output file was made")
			}
		})
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
