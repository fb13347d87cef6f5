// Package checks renders check runs and posts them idempotently.
package checks
