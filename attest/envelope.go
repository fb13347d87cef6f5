package attest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Byte limits of the reference validator ("DSSE envelope").
const (
	MaxEnvelopeBytes  = 1_000_000
	MaxPayloadBytes   = 512_000 // decoded
	MaxSignatureBytes = 16_384  // decoded
)

// Envelope is a decoded DSSE envelope with its one signature. Nothing in it is
// authentic before the signature is verified, and KeyID never is.
type Envelope struct {
	PayloadType string
	Payload     []byte // exact bytes, decoded once
	KeyID       string // unauthenticated hint
	Signature   []byte
}

// PAE is the DSSE pre-authentication encoding: what is signed.
func PAE(payloadType string, payload []byte) []byte {
	b := make([]byte, 0, len("DSSEv1")+48+len(payloadType)+len(payload))
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(payloadType)), 10)
	b = append(b, ' ')
	b = append(b, payloadType...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	b = append(b, ' ')
	return append(b, payload...)
}

// ParseEnvelope decodes an untrusted envelope of exactly one signature.
// Extension fields are read strictly and then ignored. The result shares no
// memory with data. Errors wrap ErrEnvelope.
func ParseEnvelope(data []byte) (*Envelope, error) {
	if len(data) > MaxEnvelopeBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrEnvelope, MaxEnvelopeBytes)
	}
	v, err := ReadJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	e, err := decodeEnvelope(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return e, nil
}

func decodeEnvelope(v any) (*Envelope, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	payloadType, ok := m["payloadType"].(string)
	if !ok {
		return nil, errors.New("payloadType must be text")
	}
	payload, err := base64Field(m, "payload", MaxPayloadBytes)
	if err != nil {
		return nil, err
	}
	signatures, ok := m["signatures"].([]any)
	if !ok || len(signatures) != 1 {
		return nil, errors.New("signatures must hold exactly one signature")
	}
	s, ok := signatures[0].(map[string]any)
	if !ok {
		return nil, errors.New("signature must be an object")
	}
	keyID, ok := s["keyid"].(string)
	if !ok || keyID == "" || strings.ContainsRune(keyID, 0) {
		return nil, errors.New("keyid must be text that is not empty, without NUL")
	}
	signature, err := base64Field(s, "sig", MaxSignatureBytes)
	if err != nil {
		return nil, err
	}
	return &Envelope{PayloadType: payloadType, Payload: payload, KeyID: keyID, Signature: signature}, nil
}

func base64Field(m map[string]any, key string, most int) ([]byte, error) {
	text, ok := m[key].(string)
	if !ok {
		return nil, fmt.Errorf("%s must be text", key)
	}
	data, err := DecodeBase64(text, most)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return data, nil
}

// Encode writes the envelope as canonical JSON with standard base64.
// ParseEnvelope reads the result back to an equal envelope. Errors wrap
// ErrEnvelope.
func (e *Envelope) Encode() ([]byte, error) {
	data, err := CanonicalJSON(map[string]any{
		"payloadType": e.PayloadType,
		"payload":     base64.StdEncoding.EncodeToString(e.Payload),
		"signatures": []any{map[string]any{
			"keyid": e.KeyID,
			"sig":   base64.StdEncoding.EncodeToString(e.Signature),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	if _, err := ParseEnvelope(data); err != nil {
		return nil, err
	}
	return data, nil
}

// Seal signs payload with sign, which gets the PAE bytes and returns an ASN.1
// DER signature, and returns the envelope's bytes. keyID is the hint for the
// verifier. Seal does not look into the payload.
func Seal(payloadType string, payload []byte, keyID string, sign func(pae []byte) ([]byte, error)) ([]byte, error) {
	signature, err := sign(PAE(payloadType, payload))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	e := Envelope{PayloadType: payloadType, Payload: payload, KeyID: keyID, Signature: signature}
	return e.Encode()
}

// Opened is an authentic payload: SignerID signed exactly these bytes as this
// type. Whether its content is true or expected is not checked.
type Opened struct {
	PayloadType string
	Payload     []byte
	SignerID    string
}

// Open decodes an envelope of any payload type and verifies its signature
// before anything reads the payload. Errors wrap ErrEnvelope, ErrSignature or
// ErrPayloadType. Use VerifyCapability and VerifyReceipt for the protocol's own
// predicates.
func Open(envelope []byte, payloadType string, verify SignatureVerifier) (*Opened, error) {
	e, err := ParseEnvelope(envelope)
	if err != nil {
		return nil, err
	}
	signer, err := e.authenticate(verify)
	if err != nil {
		return nil, err
	}
	if err := e.checkPayloadType(payloadType); err != nil {
		return nil, err
	}
	return &Opened{PayloadType: e.PayloadType, Payload: e.Payload, SignerID: signer}, nil
}

func (e *Envelope) checkPayloadType(want string) error {
	if e.PayloadType != want {
		return fmt.Errorf("%w: %s", ErrPayloadType, strconv.QuoteToASCII(clip(e.PayloadType)))
	}
	return nil
}

// authenticate asks verify about copies, so that a verifier cannot change what
// is parsed later.
func (e *Envelope) authenticate(verify SignatureVerifier) (signerID string, err error) {
	if verify == nil {
		return "", fmt.Errorf("%w: no verifier", ErrSignature)
	}
	signer, err := verify(PAE(e.PayloadType, e.Payload), e.KeyID, bytes.Clone(e.Signature))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSignature, err)
	}
	if signer == "" {
		return "", fmt.Errorf("%w: verifier named no signer", ErrSignature)
	}
	return signer, nil
}
