// Package signkey loads the signing key and signs bytes.
package signkey
