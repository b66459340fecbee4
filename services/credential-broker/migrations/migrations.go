// Package migrations holds the tables of the credentials schema, as goose files.
package migrations

import "embed"

// FS is the files.
//
//go:embed *.sql
var FS embed.FS

// AppendOnly returns the tables whose rows stay as they were written.
func AppendOnly() []string { return []string{"audit"} }
