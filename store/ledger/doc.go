// Package ledger is the gateway's replay ledger: which executions were
// reserved, how far each came and what the complete ones resulted in.
//
// A row moves preparing → ready (the signed capability is stored) → executing →
// complete or failed, by compare-and-swap. Terminal rows never change, and a row
// that reached executing is never deleted; triggers hold both rules against
// every writer. The process that works on a row holds its Lock; a row that is
// not terminal and whose lock is free was left behind by a dead process and can
// only become failed.
package ledger
