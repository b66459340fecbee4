// Package egress has one promise under test: an official SDK does not notice that a
// credential broker stands between it and its provider. The SDKs of Anthropic and
// OpenAI, from npm (../node/call-provider.mjs) and for Go (bench/oracle/call), make the
// same calls twice: straight to the simulated provider, and through a credential-broker
// process, with its own database and a stored account, to another one that answers the
// same. What they see is compared: events, values, errors, and the bytes and headers
// on the wire; and what the provider wrote with what arrived, byte for byte.
//
// With a request profile that changes names of tools, the provider is asked with other
// names and answers with them; the SDK sees its own.
package egress
