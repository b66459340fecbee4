package outbox

import "signalbox.dev/pkg/pg"

// InPostgres returns the table itself.
func InPostgres(db *pg.DB) Rows { return postgres{db} }
