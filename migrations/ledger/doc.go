// Package ledger embeds the migrations of the gateway's ledger.
package ledger
