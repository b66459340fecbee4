// Package audit verifies the audit of credentials: who created, changed, refreshed, removed or
// first used which, in a chain for each workspace.
//
// A row has a number, from 1 without a gap, the hash of the row before (Prev), and a Hash over
// Prev and all its other fields. A trigger in the database sets them, in the transaction of what
// the row is about, under the lock of the workspace's head, which holds the newest number and hash:
// concurrent writers are serialized, and a row exists if and only if what it is about was
// committed. The accounts of a single user have one chain, in a file whose lock takes the trigger's
// place (internal/accountfile).
//
// A Chain recomputes all of it in the program, not in the database, and reports which row was
// changed, removed, inserted, moved or replaced. Somebody who can write the whole database can also
// recompute the chain from some row on, with the head. Against that, keep the heads that a
// verification returns elsewhere, and pass them to the next one (Chain.Expect).
package audit
