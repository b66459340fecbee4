// Package audit verifies the audit of credentials: who created, changed, refreshed,
// removed or first used which, in a chain for each workspace.
//
// A row has a number, from 1 without a gap, the hash of the row before (Prev), and
// a Hash over Prev and all its other fields. A trigger in the database makes them, in
// the transaction of what the row is about, under the lock of the workspace's head,
// which holds the newest number and hash: so concurrent writers stand in one line, and
// a row is there if and only if what it tells of was committed. The accounts of a single
// user have one chain, in a file whose lock takes the trigger's place
// (internal/accountfile).
//
// A Chain recomputes all of it, in a program and not in the database, and says which
// row was changed, removed, inserted, moved or replaced. Who can write the whole
// database can also compute the chain anew from some row on, with the head: against
// that, keep the heads that a verification returns elsewhere, and give them to the
// next (Chain.Expect).
package audit
