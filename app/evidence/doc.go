// Package evidence reads an untrusted evidence directory and verifies it against
// an independent expectation.
package evidence
