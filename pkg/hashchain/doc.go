// Package hashchain verifies audits, whose rows form a hash chain for each workspace.
//
// A row has a number, from 1 without a gap, the hash of the row before (Prev), and a Hash over
// Prev and all its other fields. In a database (Table) a trigger sets them, in the transaction of
// what the row is about, under the lock of the workspace's head, which holds the newest number and
// hash: concurrent writers are serialized, and a row exists if and only if what it is about was
// committed. The head is the last lock that a transaction takes, and it is held until the commit.
//
// A Chain recomputes all of it in the program, not in the database, and reports which row was
// changed, removed, inserted, moved or replaced. Somebody who can write the whole database can also
// recompute the chain from some row on, with the head. Against that, keep the heads that Verify
// returns elsewhere, and pass them to the next one.
package hashchain
