// Package controller is the state machine of sessions and proofs: it reserves
// executions, consumes evidence and recovers at start.
package controller
