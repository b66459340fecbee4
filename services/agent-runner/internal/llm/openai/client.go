// Package openai is a client of the OpenAI Chat Completions API: of OpenAI itself, of
// OpenRouter, and of compatible servers such as Ollama and vLLM. They differ in what they
// accept, which the Flavor says, and in how closely they follow the protocol; the decoder
// accepts everything that is unambiguous.
//
// The stream has no blocks, so the raw form of an answer is an array with one message, to
// which the deltas add up: strings of the same name, annotations and unknown arrays are
// concatenated, tool calls are merged by index and reasoning details by type and index, and
// of anything else the last value counts.
//
// Nothing here is safe for concurrent use except Client.
package openai

import (
	"context"
	"maps"
	"net/http"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// Flavor is the kind of server.
type Flavor uint8

// The flavors.
const (
	OpenAI     Flavor = iota // api.openai.com: refuses unknown members
	OpenRouter               // accepts its reasoning details
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

// Stream sends the request and returns its answer, which the caller closes. The errors are
// those of llm.Transport.Open.
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
