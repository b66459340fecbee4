// Package canary looks for secrets where none may be. Its test runs a cluster, gives it
// credentials of every kind (an account's API key in the provider's header and in one of
// its own, an OAuth access and refresh token, a key from the environment, an OAuth
// client's secret, the key-encryption key), has people sign in in a browser, by pasting and
// by a device, has all of it used, renewed, quoted by providers wherever an answer can hold
// a key, refused and sealed with other keys, and then searches every place that is not the
// broker's memory: logs, every byte on every wire between two parts (the bus and the
// database among them), what the database and the bus have stored, API answers and errors,
// pages for operators, what commands print, traces, and the memory of all other processes.
//
// Whose a secret is decides where it may be:
//
//	the broker's    keys, tokens, device codes and PKCE verifiers: in its memory alone
//	a person's      user codes, codes, states and the cookies that go with them, and API
//	                keys: in the answer that shows them, in the memory of the gateways and
//	                brokers that they come by, and on the wire between these
//	a service's     its private key and its passwords: in its own memory, and the password
//	                of the bus there
//	signed          tokens that say who somebody is: in the memory of services, and on the
//	                wire between them
//
// Each kind has a mark that nothing else in the world has; what the world makes up itself
// is looked for from when it is known. One more mark, the leak, is put into each of these
// places on purpose: the search is worth something because it finds that one everywhere,
// and each kind where it must be.
//
// A second test does the same for a broker that keeps its accounts in a file, whose files,
// log, answers and traces, and all that the command line prints, hold none of it in clear,
// also where providers answer with what is no HTTP, or no JSON. A third one starts programs
// with settings that are secret and wrong.
package canary
