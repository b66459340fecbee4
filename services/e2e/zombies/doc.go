// Package zombies tests what the fences, the ledger and the order of the run log are for: lease
// holders that go on after their lease has expired, and duplicate messages. Its tests run a
// cluster of real programs, and see it only through its public API and as its operator does
// (Postgres, NATS, metrics). The invariants are:
//
//   - what viewers saw is what is stored, whoever wrote last
//   - a call that is delivered twice takes effect once
//   - an event that is on the log twice is shown once, and one of an old claim never
//   - a stream that resumes after any event has exactly the rest
//   - nobody sees uncommitted changes of a document
//
// The test itself is the model provider, and decides when each model call goes on.
package zombies
