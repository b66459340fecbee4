// Package canary searches for leaked secrets. Its test runs a cluster and gives it credentials of
// every kind: an account's API key, in the provider's header and in a custom one, an OAuth access
// and refresh token, a key from the environment, an OAuth client's secret, and the key-encryption
// key. People sign in with a browser, by pasting and with a device. All credentials are used,
// renewed, refused, encrypted again with other keys, and quoted by providers wherever a response
// can contain a key. Then the test searches every place outside the broker's memory: logs, every
// byte between two parts (including the bus and the database), the data of the database and the
// bus, API responses and errors, operators' pages, the output of commands, traces, and the memory
// of all other processes.
//
// The owner of a secret determines where it may be:
//
//	the broker      keys, tokens, device codes and PKCE verifiers: only in its memory
//	a person        user codes, codes, states and their cookies, and API keys: in the response
//	                that shows them, in the memory of the gateways and brokers that handle
//	                them, and on the wire between these
//	a service       its private key and its passwords: in its own memory, and the bus
//	                password also on the bus server
//	signed          tokens of identity: in the memory of services, and on the wire between them
//
// Each kind has a unique mark. Secrets that the world generates are searched for once they are
// known. One more mark, the leak, is put into each of these places on purpose: the search must
// find it everywhere, and each kind where it has to be.
//
// A second test checks a broker that keeps its accounts in a file: its files, log, responses and
// traces, and the output of the command line, must not contain secrets in clear, even if providers
// respond with invalid HTTP or JSON. A third one starts programs with invalid secret settings.
package canary
