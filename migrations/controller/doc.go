// Package controller embeds the migrations of the controller's database.
package controller

import "embed"

// FS holds the numbered goose migrations. They only ever go up. The job queue's
// tables have migrations of their own, which the store runs after these.
//
//go:embed *.sql
var FS embed.FS
