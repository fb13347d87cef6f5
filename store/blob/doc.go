// Package blob keeps files under their SHA-256 digest, and writes files so that
// a crash leaves either the whole file or none.
//
// A file that Put returned is durable: a database transaction may name it. What
// a crash can leave behind is a file that nothing names, or one in the
// temporary directory, which Sweep removes.
package blob
