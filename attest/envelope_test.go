package attest

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Other predicates, such as diagnostics, use the same envelope.
func TestSealAndOpen(t *testing.T) {
	key := newKey(t)
	payload := []byte("any bytes \x00\xff")
	envelope := seal(t, key, "application/octet-stream", payload)
	opened, err := Open(envelope, "application/octet-stream", verifierFor(t, key))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(opened.Payload, payload) || opened.SignerID != testSigner {
		t.Errorf("%+v", opened)
	}
	if _, err := Open(envelope, PayloadType, verifierFor(t, key)); !errors.Is(err, ErrPayloadType) {
		t.Errorf("other type: %v", err)
	}
	if _, err := Open(envelope, "application/octet-stream", verifierFor(t, newKey(t))); !errors.Is(err, ErrSignature) {
		t.Errorf("other key: %v", err)
	}
}

func TestSealRefuses(t *testing.T) {
	key := newKey(t)
	broken := errors.New("broken")
	for _, row := range []struct {
		name    string
		payload []byte
		keyID   string
		sign    func([]byte) ([]byte, error)
		want    error
	}{
		{"empty payload", nil, "hint", signWith(key), ErrEnvelope},
		{"long payload", make([]byte, MaxPayloadBytes+1), "hint", signWith(key), ErrEnvelope},
		{"no hint", []byte("x"), "", signWith(key), ErrEnvelope},
		{"hint is not UTF-8", []byte("x"), "\xff", signWith(key), ErrEnvelope},
		{"no signature", []byte("x"), "hint", func([]byte) ([]byte, error) { return nil, nil }, ErrEnvelope},
		{"signer fails", []byte("x"), "hint", func([]byte) ([]byte, error) { return nil, broken }, broken},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := Seal(PayloadType, row.payload, row.keyID, row.sign); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}

// Extension fields change neither what is read nor the encoding.
func TestExtensionsAreIgnored(t *testing.T) {
	data := []byte(`{"x":{"deep":[1.5e3,null]},"payload":"YQ==","payloadType":"t","signatures":[{"cert":"c","sig":"-_8=","keyid":"k"}]}`)
	e, err := ParseEnvelope(data)
	if err != nil {
		t.Fatal(err)
	}
	want := &Envelope{PayloadType: "t", Payload: []byte("a"), KeyID: "k", Signature: []byte{0xfb, 0xff}}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("%+v", e)
	}
	encoded, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := `{"payload":"YQ==","payloadType":"t","signatures":[{"keyid":"k","sig":"+/8="}]}`; string(encoded) != got {
		t.Errorf("%s", encoded)
	}
}

func TestReaderDepth(t *testing.T) {
	nest := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	v, err := ReadJSON(nest(MaxJSONDepth))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := CanonicalJSON(v); err != nil || !bytes.Equal(data, nest(MaxJSONDepth)) {
		t.Errorf("what was read cannot be written: %v", err)
	}
	if _, err := ReadJSON(nest(MaxJSONDepth + 1)); !errors.Is(err, ErrJSON) {
		t.Errorf("one deeper: %v", err)
	}
}

func TestCanonicalJSONRefuses(t *testing.T) {
	deep := any("x")
	for range MaxJSONDepth + 1 {
		deep = []any{deep}
	}
	for name, v := range map[string]any{
		"float":         1.5,
		"Float":         Float("1.5"),
		"other integer": uint8(1),
		"bad UTF-8":     "\xff",
		"bad key":       map[string]any{"\xff": nil},
		"too large":     MaxInteger + 1,
		"too small":     -MaxInteger - 1,
		"in an array":   []any{struct{}{}},
		"too deep":      deep,
	} {
		if data, err := CanonicalJSON(v); !errors.Is(err, ErrSchema) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}
