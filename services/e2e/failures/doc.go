// Package failures shows what becomes of a run while its model provider fails in each
// of the classic ways: nobody listens, TLS fails, silence at every stage, resets, clean
// ends before the end, rate limits, used-up quotas, refused credentials, overloads, and
// bytes that make no sense. Its test runs real programs (package world): gateway,
// agent-runner, credential-broker with stored accounts, and the simulated provider.
//
// Each failure is met three times in each dialect: by an account that is alone and
// fails for ever, by the first of two of which the second is well, and by an account
// that fails once. What must hold:
//
//   - who watches sees the whole answer, byte for byte, or an error event that says what
//     happened; never a part of an answer with a good end
//   - another account is tried where the failure is the account's own, and only there
//   - the provider is asked as often as the tries of broker and runner allow
//   - what is stored of the accounts afterwards is what the table of errors says: how
//     requests went, why an account is parked, and for how long
//
// Beside it, thousands of streams go through the broker alone while eight programs want
// each processor: one that ends cleanly has every byte that the provider sent, and one
// that the provider broke off never ends cleanly. Half are chats, and half come over
// TLS. `make e2e-streams` has 100,000 of them.
package failures
