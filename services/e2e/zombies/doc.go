// Package zombies tests the fences, the ledger and the order of the run log against zombies (lease
// holders that continue after their lease has expired) and against duplicate messages. Its tests
// run a cluster of real programs, and use its public API and the interfaces of its operator
// (Postgres, NATS, metrics). The invariants are:
//
//   - viewers saw what is stored, whichever process wrote last
//   - a tool call that is delivered twice takes effect once
//   - an event that is on the log twice is shown once, and an event of an old claim never
//   - a stream that resumes after any event gets exactly the rest
//   - nobody sees uncommitted changes of a document
//
// The test itself is the model provider and controls the progress of each model call.
package zombies
