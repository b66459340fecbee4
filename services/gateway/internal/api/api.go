// Package api is the public REST API: what is asked over HTTP, who may ask it,
// and how answers and errors look. Each operation is a function over typed input
// and output; huma reads the types, so that /openapi.json cannot differ from what
// is served.
//
// The package keeps no state. Sessions, messages and runs are agent-runner's,
// documents document-sync's, tools tool-executor's, accounts and connections
// credential-broker's: a handler checks the shape of what came in, asks the service
// that owns the thing under the caller's identity, and gives the answer its public
// form. Streams are package feed's.
package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/feed"
	"signalbox.dev/services/gateway/internal/store"
)

// Config is what the API works with.
type Config struct {
	Conversations agentv1connect.ConversationServiceClient
	Runs          agentv1connect.RunServiceClient
	Models        agentv1connect.ModelServiceClient
	Tools         toolv1connect.ToolServiceClient
	Documents     documentv1connect.DocumentServiceClient
	Accounts      credentialv1connect.AccountServiceClient
	Connections   credentialv1connect.ConnectionServiceClient
	Feed          *feed.Feed
	Store         *store.Store
	Authenticator *auth.Authenticator
	Streams       *auth.Streams
	Log           *slog.Logger
	Version       string
	// BodyTimeout bounds how long a body may take to come; big ones get more. 10 s when 0.
	BodyTimeout time.Duration
	// WriteTimeout bounds how long a stream's client may take for 64 KiB. 10 s when 0.
	WriteTimeout time.Duration
	// ReturnPaths are those of the console to which a browser may go on that comes back
	// from a provider; the first is the default. Without any it is shown a page.
	ReturnPaths []string
	// KeepConnections leaves streams to net/http, also where the feed could take
	// their connections over.
	KeepConnections bool
	// DiskFull reports whether that is why something is unavailable; nil where nobody knows.
	DiskFull func() bool
}

// API serves the operations. It may be used from any goroutine.
type API struct {
	cfg  Config
	mux  *http.ServeMux
	huma huma.API
	spec []byte
	// lookups are of sessions that viewers come to at this moment.
	lookups *coalescer[sessionKey, *agentv1.GetSessionResponse]
}

// sessionKey names a session as somebody of a workspace may see it.
type sessionKey struct {
	workspace id.Workspace
	session   id.Session
}

// Body limits.
const (
	limitJSON     = 1 << 20
	limitDocument = 10<<20 + 64<<10 // 10 MiB of Markdown in its JSON
	limitMessage  = 20 << 20
)

// New returns the API. An error means that its description could not be written.
func New(cfg Config) (*API, error) {
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = 10 * time.Second
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 10 * time.Second
	}
	a := &API{cfg: cfg, mux: http.NewServeMux(), lookups: newCoalescer[sessionKey, *agentv1.GetSessionResponse](10 * time.Second)}
	a.huma = newHuma(a.mux, cfg.Version)
	a.huma.UseMiddleware(a.guard)
	a.sessions()
	a.messages()
	a.runs()
	a.tools()
	a.models()
	a.documents()
	a.workspaces()
	a.keys()
	a.accounts()
	a.connections()
	describe(a.huma.OpenAPI())
	var err error
	if a.spec, err = json.Marshal(a.huma.OpenAPI()); err != nil {
		return nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}
	return a, nil
}

// Spec returns the OpenAPI 3.1 document.
func (a *API) Spec() []byte { return a.spec }

// ServeHTTP serves the operations, and an error in our form for everything else.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h, pattern := a.mux.Handler(r); pattern == "" {
		notRouted(w, r, h)
		return
	}
	a.mux.ServeHTTP(w, r) // sets the path's values, which Handler does not
}

// notRouted answers for a path or method that nothing is registered for. The
// mux's own answer tells which of the two it is.
func notRouted(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	e := &Error{status: http.StatusNotFound, Message: "there is no such path: " + clip(r.URL.Path)}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		e = &Error{status: probe.status, Message: fmt.Sprintf("%s is not allowed here: use %s", clip(r.Method), allow), header: http.Header{"Allow": {allow}}}
	}
	e.write(w)
}

// probe takes the status and the headers of an answer.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }

// access is who may use an operation.
type access struct {
	role identity.Role
	// workspace is where the workspace's id comes from.
	workspace source
	// urlToken allows the token in the URL: EventSource cannot set headers.
	urlToken bool
	// people refuses API keys: who holds one acts in its workspace, and decides
	// neither who else does nor about the person who made it.
	people bool
	// page is for browsers that come from elsewhere, without a token.
	page bool
}

type source uint8

const (
	fromHeader  source = iota // X-Workspace-Id, or ?workspace_id=
	fromPath                  // the path's {id}
	fromNowhere               // the operation is about the person
)

const accessKey = "access"

// handle registers an operation. What h returns as an error is turned into the
// public form; an internal one is logged here and shown to nobody.
func handle[I, O any](a *API, op huma.Operation, who access, h func(context.Context, *I) (*O, error)) {
	op.Metadata = map[string]any{accessKey: who}
	op.SkipValidateBody = true // decodeJSON says what is wrong, and once is enough for 20 MiB
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = limitJSON
	}
	op.BodyReadTimeout = a.cfg.BodyTimeout * time.Duration(3+op.MaxBodyBytes>>20) / 4
	op.MaxBodyBytes++ // huma refuses a body of exactly the limit
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, a.failure(ctx, op.OperationID, err)
		}
		return out, nil
	})
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
