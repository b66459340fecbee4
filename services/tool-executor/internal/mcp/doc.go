// Package mcp offers the tools of MCP servers that workspaces have added, and of those that the
// operator offers to workspaces (Servers).
//
// # Where things are
//
// Servers is the tool.Source that the executor and the listing ask. It answers from Postgres
// (store.go): a server's row has the definitions of its tools as the server last sent them
// (definition.go), and the digests of those that a member has approved. A definition that is
// not approved is listed as unavailable, because its text goes into the model's context and may
// tell it anything. Whoever adds a server approves what it offers then.
//
// A listing never waits for a server. It finds out which rows are due for a check, claims them
// in Postgres, so that one replica checks each, and checks them in the background. A server
// that fails is checked less and less often; its tools are unavailable meanwhile.
//
// The operator's servers (operator.go) are programs that talk over their standard streams
// (process.go). They have rows too, so that their definitions are pinned in the same way, and
// ids that follow from the workspace and the name. A server with resources or prompts has two
// tools more, whose definitions are ours (resources.go).
//
// # Untrusted servers
//
// The official SDK speaks the protocol; client.go and wire.go stand between it and the server.
// They bound an operation's time, requests, bytes and JSON values, and the depth of JSON, all
// before the SDK sees anything, and return on time whatever the SDK does. Connections go to
// public addresses only (package netguard), or, for a server with a credential, through the
// credential broker, which adds the secret and guards its own connections: no secret is ever in
// this process. The client offers no capability, so that a server can ask for nothing.
//
// The calls of one conversation share a protocol session with a server (link.go), so that the
// server can remember what it did before. It is kept for some minutes by the executor that ran
// the call, so another executor has another session. Nothing is shared between conversations or
// workspaces. A server may announce over a kept session that its tools have changed; it is then
// checked at once.
package mcp
