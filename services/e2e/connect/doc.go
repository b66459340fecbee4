// Package connect tests connecting tools and administering accounts over the public API of a
// cluster: two gateways behind a front that alternates
// between them, two credential brokers, and a database.
//
// The providers are test authorization servers that behave like Google (forms, permanent refresh
// tokens), Notion (JSON, the client in an Authorization header, rotating refresh tokens) and GitHub
// (form responses, tokens that never expire, no revocation). The person is an HTTP client with a
// cookie jar. The tests call the brokers' egress with the identity of tool-executor, as a tool
// would.
package connect
