// Package openai speaks the OpenAI Chat Completions dialect: to OpenAI itself, to
// OpenRouter, and to the many servers that are compatible with it (Ollama, vLLM and
// others). They differ in what they take, which is what a Flavor says, and in how
// closely they keep to the protocol; the decoder takes what is unambiguous.
//
// The stream has no blocks, so the raw form of an answer is an array with one
// message, the one that the deltas add up to: strings of the same name are joined,
// annotations and unknown arrays are continued, tool calls are put together by index,
// reasoning details by type and index, and anything else is kept as it came last.
//
// Nothing here is safe for concurrent use except Client.
package openai

import (
	"context"
	"maps"
	"net/http"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// Flavor says whose server is spoken to.
type Flavor uint8

// The flavors.
const (
	OpenAI     Flavor = iota // api.openai.com: strict about what it takes
	OpenRouter               // takes its reasoning details back
	Compatible               // anything else
)

// Dialect returns the name of the flavor in llm.Raw and llm.Request.Options. Raw
// answers are sent again only to the flavor they came from.
func (f Flavor) Dialect() string {
	switch f {
	case OpenRouter:
		return "openrouter"
	case Compatible:
		return "openai-compatible"
	}
	return "openai"
}

// Client calls a Chat Completions API. It is safe for concurrent use.
type Client struct {
	transport *llm.Transport
	flavor    Flavor
}

// New returns a client that posts to BaseURL + /chat/completions.
func New(cfg llm.Config, flavor Flavor) (*Client, error) {
	t, err := llm.NewTransport(cfg, "/chat/completions")
	if err != nil {
		return nil, err
	}
	return &Client{transport: t, flavor: flavor}, nil
}

// Stream sends the request and returns its answer, which the caller closes. The error
// is an *llm.Error, or the cause of the end of ctx.
func (c *Client) Stream(ctx context.Context, req *llm.Request) (*llm.Stream, error) {
	body, err := Build(req, c.flavor)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if req.Meta.Session != "" {
		header[llm.SessionHeader] = []string{req.Meta.Session}
	}
	maps.Copy(header, req.Header)
	return c.transport.Open(ctx, header, body, NewDecoder(c.flavor, req.Meta.IDSeed, c.transport.Limits()))
}
