package pg

// Waiting returns how many callers wait for a connection.
func Waiting(db *DB) int { return db.slots.Waiting() }
