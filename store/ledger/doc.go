// Package ledger is the gateway's replay ledger.
package ledger
