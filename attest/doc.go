// Package attest implements the Underwrite host execution protocol, version 1:
// its documents, signed statements and validator. It does no I/O, holds no key
// and imports the standard library only. Names in quotes in the comments are
// sections of the protocol.
//
// To accept evidence, call VerifyReceipt with a context from your own records,
// never with one taken from an envelope. To issue it, build payloads with
// NewCapability and NewReceipt, which return nothing that the validator would
// refuse, and sign them with Seal. ReadJSON and CanonicalJSON serve every other
// document that must be read strictly.
package attest
