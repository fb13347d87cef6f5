// Package runner is the broker: one request becomes one evidence directory.
package runner
