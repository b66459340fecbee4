// Package migrations holds the tables of tool-executor, as goose files.
package migrations

import "embed"

// FS holds the files.
//
//go:embed *.sql
var FS embed.FS
