// Package connect has the stories of tools that people connect, and of accounts that
// owners administer, told over the public API against a cluster: two gateways behind a
// front that gives them requests by turns, two credential brokers, a database.
//
// The providers are test authorisation servers that behave as Google (form, refresh
// tokens that stay), Notion (JSON, the client in an Authorization header, refresh tokens
// that rotate) and GitHub (answers as forms, tokens that never expire, no way to be told
// of a sign-out) do. The person is an HTTP client with a cookie jar. What a tool would
// be answered is asked of the brokers' egress with the identity of tool-executor.
package connect
