// Package zombies shows what must hold when a lease holder goes on after its lease has
// run out, and when messages come twice: what the fences, the ledger and the order of the
// run log are for. Its tests run a cluster of real programs, see it through its public API
// and as its operator would (Postgres, NATS, metrics), and know nothing of how it is made:
//
//   - what viewers were told is what is stored, whoever wrote last
//   - a call that is delivered twice acts once
//   - an event that is on the log twice, or from a claim that is over, is shown once or never
//   - a stream that goes on behind any event has exactly the rest
//   - nobody sees of a document what is not committed
//
// The model provider is the test: it decides when each call of the model goes on.
package zombies
