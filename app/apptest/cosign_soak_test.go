//go:build soak

package apptest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCosign has cosign, built by the command in docs/verify.md, verify what
// underwrite exports.
func TestCosign(t *testing.T) {
	d := readDocument(t)
	d.installCosign(t)
	t.Run("document", func(t *testing.T) { testCosignDocument(t, &document{d.text, d.bin, t.TempDir()}) })
	t.Run("answers", func(t *testing.T) { testCosignAnswers(t, &document{d.text, d.bin, t.TempDir()}) })
}

// testCosignDocument runs the commands of docs/verify.md, word for word.
func testCosignDocument(t *testing.T, d *document) {
	d.run(t, strings.Join(d.commands(t, "Something to verify"), ""))
	verified := 0
	for _, block := range d.commands(t, "With cosign")[1:] {
		_, stderr := d.run(t, block)
		verified += strings.Count(stderr, "Verified OK")
	}
	if verified != 2 {
		t.Errorf("cosign verified %d statements, want receipt and capability", verified)
	}
}

// installCosign builds the version that the document names. This alone has the
// network.
func (d *document) installCosign(t *testing.T) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", d.commands(t, "With cosign")[0])
	cmd.Env = append(os.Environ(), "GOBIN="+d.bin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build cosign: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(d.bin, "cosign")); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "version", "-m", filepath.Join(d.bin, "cosign")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "mod" {
			t.Logf("%s %s", f[1], f[2])
		}
	}
}

// question is one call of cosign.
type question struct {
	key, bundle, kind, digest string
}

const (
	receiptType    = "execution-receipt"
	capabilityType = "host-capability"
)

func (d *document) ask(q question) (stderr string, err error) {
	_, stderr, err = d.try("cosign verify-blob-attestation --key " + q.key + " --bundle " + q.bundle + " --insecure-ignore-tlog" +
		" --type https://github.com/radkode/underwrite/attestations/" + q.kind + "/v1 --digest " + q.digest + " --digestAlg gitTree")
	return stderr, err
}

// testCosignAnswers: cosign accepts a receipt, and refuses it as soon as one
// thing is wrong, for that reason.
func testCosignAnswers(t *testing.T, d *document) {
	input, output := d.proveFailure(t)
	good := question{"out.pub.pem", "receipt.json", receiptType, output}
	for name, c := range map[string]struct {
		question
		reason string // empty: it is good
	}{
		"good receipt":    {good, ""},
		"good copy":       {question{good.key, "copy.json", good.kind, good.digest}, ""},
		"good capability": {question{good.key, "capability.json", capabilityType, input}, ""},
		"wrong digest":    {question{good.key, good.bundle, good.kind, input}, "provided artifact digest does not match any digest in statement"},
		"wrong type":      {question{good.key, good.bundle, capabilityType, good.digest}, "invalid predicate type, expected https://github.com/radkode/underwrite/attestations/host-capability/v1 got "},
		"capability as receipt": {question{good.key, "capability.json", good.kind, input},
			"invalid predicate type, expected https://github.com/radkode/underwrite/attestations/execution-receipt/v1 got "},
		"tampered":  {question{good.key, "tampered.json", good.kind, good.digest}, "accepted signatures do not match threshold"},
		"other key": {question{"other.pub.pem", good.bundle, good.kind, good.digest}, "accepted signatures do not match threshold"},
	} {
		t.Run(name, func(t *testing.T) {
			stderr, err := d.ask(c.question)
			switch exit := new(exec.ExitError); {
			case c.reason == "" && (err != nil || !strings.Contains(stderr, "Verified OK")):
				t.Errorf("%v\n%s", err, stderr)
			case c.reason != "" && (!errors.As(err, &exit) || !strings.Contains(stderr, c.reason) || strings.Contains(stderr, "Verified OK")):
				t.Errorf("%v, want %q\n%s", err, c.reason, stderr)
			}
		})
	}
}

// proveFailure makes and exports the evidence of a job that leaves another tree
// than it found and ends with exit code 3, and beside the receipt one that claims
// exit code 0 and one that was written in the same way without a change. It
// returns both trees.
func (d *document) proveFailure(t *testing.T) (input, output string) {
	t.Helper()
	if err := newRepository(filepath.Join(d.dir, "repo")); err != nil {
		t.Fatal(err)
	}
	stdout, _ := d.run(t, `
underwrite profile init job.yml
sed -i 's|^argv: .*|argv: [/bin/sh, -c, "echo made >made; exit 3"]|' job.yml
underwrite prove --repo repo --base base --head head --profile job.yml --expect 3 --evidence-dir out --json
underwrite export out --format sigstore-bundle --output receipt.json
underwrite export out --format sigstore-bundle --statement capability --output capability.json
underwrite keygen other.pem >keygen.txt
test -s other.pub.pem`)
	var proof struct {
		InputTree  string `json:"input_tree"`
		OutputTree string `json:"output_tree"`
	}
	if err := json.Unmarshal([]byte(stdout), &proof); err != nil {
		t.Fatal(err)
	}
	if len(proof.InputTree) != 64 || len(proof.OutputTree) != 64 || proof.InputTree == proof.OutputTree {
		t.Fatalf("trees %+v, want two", proof)
	}
	d.change(t, "receipt.json", "copy.json", 3)
	d.change(t, "receipt.json", "tampered.json", 0)
	return proof.InputTree, proof.OutputTree
}

// change copies a bundle, with another exit code for 3 in its payload.
func (d *document) change(t *testing.T, from, to string, code int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, from))
	if err != nil {
		t.Fatal(err)
	}
	var bundle struct {
		MediaType            json.RawMessage `json:"mediaType"`
		VerificationMaterial json.RawMessage `json:"verificationMaterial"`
		Envelope             struct {
			Payload     []byte          `json:"payload"`
			PayloadType json.RawMessage `json:"payloadType"`
			Signatures  json.RawMessage `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(text, &bundle); err != nil {
		t.Fatal(err)
	}
	before, after, found := bytes.Cut(bundle.Envelope.Payload, []byte(`"exitCode":3`))
	if !found {
		t.Fatalf("no exit code in %s", bundle.Envelope.Payload)
	}
	bundle.Envelope.Payload = fmt.Appendf(nil, `%s"exitCode":%d%s`, before, code, after)
	if text, err = json.Marshal(bundle); err == nil {
		err = os.WriteFile(filepath.Join(d.dir, to), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
