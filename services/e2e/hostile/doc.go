// Package hostile tests that a model which obeys strangers can neither do nor send anything
// outside without a person's approval.
//
// The model is fully obedient: it does what a person's message asks, and then what any text that
// it was shown orders. Strangers have left such orders in every text that they can write
// (channels), for every effect that tools have (effects), with a secret of the workspace in
// several encodings. A real cluster runs the attacks, in workspaces whose owners have allowed
// every tool, so that nothing but the taint of the conversation is in the way. The model's
// provider, the far ends of tools and an MCP server belong to the test, which records every
// request that reaches them.
//
// Where Chromium is installed, it shows the strangers' web pages, which are at an address that the
// operator allows, as text and as pictures that the model looks at.
//
// Reading is not an effect: requests that read the workspace's own accounts at Google, Notion
// and GitHub may contain the secret, because no stranger can see them. The provider of the
// model sees everything.
//
// A fifth of the attacks run by default, with every channel and every effect among them.
// SIGNALBOX_E2E_HOSTILE=full, which `make e2e-hostile` sets, runs all 500.
package hostile
