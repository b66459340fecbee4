package mcp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Client is the client by itself, without a store.
type Client struct{ client }

// NewClient returns a client that sends all requests over rt.
func NewClient(rt http.RoundTripper) *Client {
	return &Client{client{
		transport: func(s Server) (string, http.RoundTripper) { return s.URL, rt }, log: slog.New(slog.DiscardHandler), processes: 8,
	}}
}

// LogTo sets the log of what the operator's servers say.
func (c *Client) LogTo(log *slog.Logger) { c.log = log }

// List lists a server's tools.
func (c *Client) List(ctx context.Context, s Server) ([]Definition, error) { return c.list(ctx, s) }

// Call calls a tool.
func (c *Client) Call(ctx context.Context, s Server, name string, args any) (tool.Result, error) {
	return c.CallWatched(ctx, s, name, args, func(tool.Progress) {})
}

// CallWatched calls a tool, and reports its progress.
func (c *Client) CallWatched(ctx context.Context, s Server, name string, args any, report func(tool.Progress)) (tool.Result, error) {
	return c.call(ctx, s, name, args, report)
}

// Wait waits for all work.
func (c *Client) Wait() { c.running.Wait() }

// Close closes the client.
func (c *Client) Close() { c.close() }

// Open returns the number of sessions that are kept.
func (c *Client) Open() int {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	return len(c.links.open)
}

// MaxWorkspaceLinks is maxWorkspaceLinks.
const MaxWorkspaceLinks = maxWorkspaceLinks

// Expire closes the sessions that are idle, as if their time had come.
func (c *Client) Expire() {
	c.dropWhere(func(linkKey) bool { return true })
}

// WasSent reports whether an error came after the call may have reached the server.
func WasSent(err error) bool { return errors.Is(err, errSent) }

// OperatorServer returns the only server of an operator's file, as a workspace has it.
func OperatorServer(o Operator, ws id.Workspace) Server { return o[0].of(ws) }

// ParseOperator is parseOperator.
func ParseOperator(text []byte) (Operator, error) { return parseOperator(text) }

// Entries returns the tools that a server with these definitions has, all approved.
func Entries(c *Client, s Server) []tool.Entry {
	return EntriesBehind(netguard.New(netguard.Config{}), c, s)
}

// EntriesBehind is Entries with a guard.
func EntriesBehind(guard *netguard.Guard, c *Client, s Server) []tool.Entry {
	for _, d := range s.Tools {
		s.Approved = append(s.Approved, d.Hash())
	}
	return s.entries(&c.client, guard)
}

// ResultOf returns a server's answer as an envelope.
func ResultOf(res *mcp.CallToolResult) tool.Result { return new(client).resultOf(Server{}, res) }

// Why is why.
func Why(err error) string { return why(err) }

// MaxDepth is maxDepth.
const MaxDepth = maxDepth

// Scan passes a body to a scanner in pieces and returns the number of values.
func Scan(body []byte, sse bool, piece int) (values int64, err error) {
	s := scanner{sse: sse, lineStart: true}
	for len(body) > 0 {
		n := min(piece, len(body))
		v, _, err := s.scan(body[:n])
		if err != nil {
			return values, err
		}
		values, body = values+v, body[n:]
	}
	return values, nil
}

// Define is define.
func Define(t *mcp.Tool) Definition { return define(t) }
