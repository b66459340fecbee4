// Package migrations holds the tables of document-sync, as goose files.
package migrations

import "embed"

// FS holds the files.
//
//go:embed *.sql
var FS embed.FS
