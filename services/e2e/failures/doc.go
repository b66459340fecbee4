// Package failures tests runs whose model provider fails in each of the classic ways:
// refused connections, TLS errors, silence at every stage, resets, early clean ends, rate limits,
// exhausted quotas, refused credentials, overloads, and garbage. Its test runs real programs
// (package world): gateway, agent-runner, credential-broker with stored accounts, and the
// simulated provider.
//
// Each failure happens three times in each dialect: to a single account, permanently; to the first
// of two accounts; and to an account, once. The invariants are:
//
//   - a viewer sees the complete answer, byte by byte, or an error event that says what happened;
//     never a partial answer with a clean end
//   - another account is tried if, and only if, the failure is the account's own
//   - the provider is called as often as the attempts of broker and runner allow
//   - the stored state of the accounts matches the table of errors: the results of requests, and
//     the reason and the time for which an account is parked
//
// A second test sends thousands of streams through the broker alone, on a machine with eight busy
// programs per processor: a stream that ends cleanly has every byte that the provider sent, and
// one that the provider broke off never ends cleanly. Half are chats, and half use TLS.
// `make e2e-streams` runs 100,000 of them.
package failures
