// Package anthropic speaks the Anthropic Messages dialect: it builds requests and
// decodes the event stream of their answers.
//
// The decoder keeps one block per index with the bytes of its content_block_start and
// folds the deltas into it: text, thinking, signature and partial JSON are appended to
// the member they belong to, citations to the array. A delta type that is not known
// is folded by its members: a string continues the block's string of the same name,
// an array is continued, anything else replaces. A block without deltas is kept byte
// for byte; in one with deltas only the members concerned are spliced. Unknown events
// are ignored.
//
// Nothing here is safe for concurrent use except Client.
package anthropic

import (
	"context"
	"maps"
	"net/http"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// Dialect is the name of this dialect in llm.Raw and in llm.Request.Options.
const Dialect = "anthropic"

const (
	apiVersion       = "2023-06-01"
	defaultMaxTokens = 8_192
)

// Client calls the Messages API. It is safe for concurrent use.
type Client struct {
	transport *llm.Transport
}

// New returns a client that posts to BaseURL + /v1/messages.
func New(cfg llm.Config) (*Client, error) {
	t, err := llm.NewTransport(cfg, "/v1/messages")
	if err != nil {
		return nil, err
	}
	return &Client{transport: t}, nil
}

// Stream sends the request and returns its answer, which the caller closes. The error
// is an *llm.Error, or the cause of the end of ctx.
func (c *Client) Stream(ctx context.Context, req *llm.Request) (*llm.Stream, error) {
	body, err := Build(req)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Anthropic-Version": {apiVersion}}
	if req.Meta.Session != "" {
		header[llm.SessionHeader] = []string{req.Meta.Session}
	}
	maps.Copy(header, req.Header)
	return c.transport.Open(ctx, header, body, NewDecoder(req.Meta.IDSeed, c.transport.Limits()))
}
