// Package evidence reads an evidence directory, which is hostile transport, and
// verifies it against the reader's own expectation.
//
// Read takes the six files out of the directory and keeps exact copies. Verify
// then goes through the numbered steps of the protocol's sections "Linked
// implementation evidence transport", "Artifact verification integration" and
// "Validator contract": nothing that it compares with comes out of the
// directory. Its report says what was checked, also when a step fails.
package evidence
