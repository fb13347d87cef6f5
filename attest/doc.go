// Package attest implements the Underwrite host execution protocol, version 1.
package attest
