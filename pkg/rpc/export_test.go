package rpc

// NewHTTPClientOfLife is NewHTTPClient with another life of connections.
var NewHTTPClientOfLife = newHTTPClient
