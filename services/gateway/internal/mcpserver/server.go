// Package mcpserver offers a workspace's documents and agents to other programs' agents, as a
// Model Context Protocol server over streamable HTTP (protocol versions 2024-11-05 and later;
// https://modelcontextprotocol.io).
//
// A client authenticates as at the REST API, best with an API key, and acts with the rights of
// its holder. The server keeps no sessions: each request stands for itself and may go to any
// gateway. Documents and sessions are tools and resources; agents are runs, which are started
// with start_run and awaited with get_run, since a run may take longer than a request.
package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"

	"signalbox.dev/services/gateway/internal/auth"
)

// Config configures a server.
type Config struct {
	Authenticator *auth.Authenticator
	// Streams count the calls that wait for a run, along with the open streams of the REST API.
	Streams       *auth.Streams
	Conversations agentv1connect.ConversationServiceClient
	Runs          agentv1connect.RunServiceClient
	Documents     documentv1connect.DocumentServiceClient
	// Origins are those whose pages may call the server; * for all.
	Origins []string
	// OperationKey derives the key of an operation from the caller's.
	OperationKey func(a identity.Actor, kind, key string) (string, error)
	// WriteError answers a request that is refused.
	WriteError func(http.ResponseWriter, error)
	Log        *slog.Logger
	Version    string
}

// maxBody bounds a request.
const maxBody = 1 << 20

const instructions = `Signalbox is a workspace of documents and agents. Find documents with list_documents and read them with read_document. ` +
	`Give an agent of the workspace a task with start_run; if it has not ended after the wait, ask for it again with get_run.`

// New returns the handler of the endpoint.
func New(cfg Config) http.Handler {
	s := &server{cfg}
	m := mcp.NewServer(&mcp.Implementation{Name: "signalbox", Title: "Signalbox", Version: cfg.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		// Without a session there is nobody to notify of changes, or to log to.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
	})
	s.addTools(m)
	s.addResources(m)
	m.AddReceivingMiddleware(s.recovered)
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return m }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, MaxRequestBodyBytes: maxBody, Logger: slog.New(slog.DiscardHandler),
		// It would refuse what a reverse proxy on the same machine forwards; see allows.
		DisableLocalhostProtection: true,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); !s.allows(origin, r.Host) {
			cfg.WriteError(w, fault.Coded(fault.Forbidden, "ORIGIN_NOT_ALLOWED", "pages of %.100q may not use the MCP server: GATEWAY_CORS_ORIGINS says whose may", origin))
			return
		}
		ctx, err := s.authorize(r)
		if err != nil {
			cfg.WriteError(w, err)
			return
		}
		if err := refuseBatch(w, r); err != nil {
			cfg.WriteError(w, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(ctx)) //nolint:contextcheck // authorize derives it from the request's
	})
}

type server struct{ cfg Config }

// allows reports whether a page of origin may call the server at host. A page of a loopback
// address may call its own; a page of another name must be listed even if the host is the same,
// since a name can be rebound to our address. Clients other than browsers send no origin.
func (s *server) allows(origin, host string) bool {
	if origin == "" || slices.Contains(s.cfg.Origins, "*") || slices.Contains(s.cfg.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host != host {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

// refuseBatch refuses a request with several messages, which protocol versions until 2025-03-26
// have: it counts once against the rate limits, but could start thousands of runs.
func refuseBatch(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.New(fault.TooLarge, "the request is over %d KiB", maxBody>>10)
	}
	if err != nil {
		return fault.New(fault.Invalid, "the request could not be read")
	}
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		return fault.New(fault.Invalid, "batches are not supported: send each message in a request of its own")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// recovered answers a request whose handler panics: the SDK calls handlers in goroutines of its
// own, in which a panic would end the process.
func (s *server) recovered(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		err = panics.Try(func() (err error) {
			res, err = next(ctx, method, req)
			return err
		})
		if p, ok := errors.AsType[*panics.Error](err); ok {
			return nil, s.shown(ctx, method, p)
		}
		return res, err
	}
}

// callerKey is the context key of the caller.
type callerKey struct{}

// caller is who makes a request. ctx ends with the request, unlike what the SDK hands to handlers.
type caller struct {
	ctx       context.Context //nolint:containedctx // as above
	principal auth.Principal
}

// authorize returns a context with the caller and its identity.
func (s *server) authorize(r *http.Request) (context.Context, error) {
	a := s.cfg.Authenticator
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	who, err := a.Authenticate(r.Context(), a.Address(r), strings.TrimSpace(token))
	if err != nil {
		return nil, err
	}
	workspace := r.Header.Get("X-Workspace-Id")
	if workspace == "" {
		workspace = r.URL.Query().Get("workspace_id")
	}
	principal, err := a.Authorize(r.Context(), who, workspace)
	if err != nil {
		return nil, err
	}
	if at := a.Address(r); at.IsValid() {
		principal.Actor.Address = at.String()
	}
	ctx := identity.With(r.Context(), principal.Actor)
	return context.WithValue(ctx, callerKey{}, caller{ctx, principal}), nil
}

// tool adds a tool whose result is a JSON object.
func tool[In, Out any](s *server, m *mcp.Server, name, description string, hints mcp.ToolAnnotations, call func(context.Context, In) (Out, error)) {
	mcp.AddTool(m, &mcp.Tool{Name: name, Description: description, Annotations: &hints}, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		out, err := call(ctx, in)
		return nil, out, s.shown(ctx, name, err)
	})
}

// shown returns what the caller may see of an error.
func (s *server) shown(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	f := fault.From(err)
	if f.Kind == fault.Internal {
		s.cfg.Log.ErrorContext(ctx, "call of the MCP server failed", "name", name, "error", err)
		return errors.New("the call failed inside of Signalbox: try again later")
	}
	return errors.New(inputName(f.Message))
}

// inputNames are the tools' names of services' fields.
var inputNames = map[string]string{"page_size": "limit", "operation_key": "idempotency_key", "markdown": "content", "content_json": "message"}

// inputName replaces the field name at the beginning of a service's message.
func inputName(message string) string {
	field, rest, ok := strings.Cut(message, ": ")
	if name := inputNames[field]; ok && name != "" {
		return name + ": " + rest
	}
	return message
}

// Hints for clients that ask people before they call a tool.
var (
	reads   = mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)}
	writes  = mcp.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)}
	changes = mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)}
)

// stamp formats a time.
func stamp(t interface{ AsTime() time.Time }) string { return t.AsTime().UTC().Format(time.RFC3339) }

// text returns the plain text of a message's content: a string, or parts of which those with
// text count.
func text(content string) string {
	var plain string
	if json.Unmarshal([]byte(content), &plain) == nil {
		return plain
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal([]byte(content), &parts) != nil {
		return ""
	}
	var out []string
	for _, p := range parts {
		if p.Type == "text" && p.Text != "" {
			out = append(out, p.Text)
		}
	}
	return strings.Join(out, "\n\n")
}
