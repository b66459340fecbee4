// Package egress tests that an official SDK does not notice a credential broker in front of its
// provider. The SDKs of Anthropic and OpenAI, from npm (../node/call-provider.mjs) and for Go
// (bench/oracle/call), make the same calls twice: directly to the simulated provider, and through
// a credential-broker process, with its own database and a stored account, to an equal provider.
// The test compares events, values, errors, and the bytes and headers on the wire, and what the
// provider wrote with what arrived, byte by byte.
//
// With a request profile that renames tools, the provider sees other names than the SDK.
package egress
