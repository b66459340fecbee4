// Package anthropic is a client of the Anthropic Messages API: it builds requests and decodes
// the event streams of their answers.
//
// The decoder keeps one block per index with the bytes of its content_block_start and folds
// the deltas into it: text, thinking, signature and partial JSON are appended to their member,
// and citations to the array. The members of an unknown delta type are merged: strings and
// arrays are appended to the block's member of the same name, and other values replace it. A
// block without deltas is kept byte for byte; in a block with deltas only the changed members
// are spliced. Unknown events are ignored.
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

// Stream sends the request and returns its answer, which the caller closes. The errors are
// those of llm.Transport.Open.
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
