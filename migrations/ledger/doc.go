// Package ledger embeds the migrations of the gateway's ledger.
package ledger

import "embed"

// FS holds the numbered goose migrations. They only ever go up: a ledger that
// was rolled back would forget challenges.
//
//go:embed *.sql
var FS embed.FS
