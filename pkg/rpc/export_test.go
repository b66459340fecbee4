package rpc

import (
	"net/http"
	"time"
)

// NewHTTPClientOfLife is NewHTTPClient with another life of connections, without TLS.
func NewHTTPClientOfLife(life time.Duration) *http.Client { return newHTTPClient(nil, life) }
