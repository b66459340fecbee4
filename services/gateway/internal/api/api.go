// Package api is the public REST API: its operations, who may use them, and the form of
// answers and errors. Each operation is a function with typed input and output. huma
// generates /openapi.json from the types, so that the document and the code agree.
//
// The package keeps no state. Sessions, messages and runs belong to agent-runner,
// documents to document-sync, tools to tool-executor, accounts and connections to
// credential-broker. A handler validates the request, calls the owning service with the
// caller's identity, and converts the answer to its public form. Package feed serves the
// streams.
//
// Parameters with rules of their own (ids, cursors, If-Match, Idempotency-Key) are types
// that parse themselves, see params.go; views.go converts what services return.
package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
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
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/store"
)

// Config configures an API.
type Config struct {
	Conversations agentv1connect.ConversationServiceClient
	Runs          agentv1connect.RunServiceClient
	Models        agentv1connect.ModelServiceClient
	Approvals     agentv1connect.ApprovalServiceClient
	Usage         agentv1connect.UsageServiceClient
	Audit         agentv1connect.AuditServiceClient
	Presets       agentv1connect.PresetServiceClient
	Tools         toolv1connect.ToolServiceClient
	McpServers    toolv1connect.McpServiceClient
	Documents     documentv1connect.DocumentServiceClient
	Accounts      credentialv1connect.AccountServiceClient
	Connections   credentialv1connect.ConnectionServiceClient
	Feed          *feed.Feed
	Store         *store.Store
	Authenticator *auth.Authenticator
	Streams       *auth.Streams
	Shared        *auth.Streams // of share links
	Log           *slog.Logger
	Version       string
	// BodyTimeout bounds the time to read a body; large ones get more. 10 s when 0.
	BodyTimeout time.Duration
	// WriteTimeout bounds the time that a stream's client takes for 64 KiB. 10 s when 0.
	WriteTimeout time.Duration
	// ReturnPaths are the paths to which a browser may be redirected after a sign-in; the
	// first is the default. Without any the browser is shown a page.
	ReturnPaths []string
	// Company is the sign-in at an OpenID Connect provider; nil without one.
	Company *Company
	// KeepConnections serves all streams through net/http, even if the feed could hijack
	// their connections.
	KeepConnections bool
	// DiskFull reports whether the disk is full; nil if that cannot be known.
	DiskFull func() bool
}

// API serves the operations. It is safe for concurrent use.
type API struct {
	cfg  Config
	mux  *http.ServeMux
	huma huma.API
	spec func() []byte
	// lookups coalesces reads of the same session by viewers that arrive together.
	lookups *coalescer[sessionKey, *agentv1.GetSessionResponse]
	// sharedReads coalesces reads of a shared document.
	sharedReads *coalescer[id.Document, sharedState]
	shareOpens  *limit.Limiter[netip.Prefix] // by IPv4 address or IPv6 /64
}

// sessionKey is a session in the workspace of the caller.
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

// New returns an API.
func New(cfg Config) *API {
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = 10 * time.Second
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 10 * time.Second
	}
	a := &API{
		cfg: cfg, mux: http.NewServeMux(), lookups: newCoalescer[sessionKey, *agentv1.GetSessionResponse](10 * time.Second),
		sharedReads: newCoalescer[id.Document, sharedState](contentTimeout),
		shareOpens:  limit.New[netip.Prefix](shareOpens, maxShareAddresses),
	}
	a.huma = newHuma(a.mux, cfg.Version)
	a.huma.UseMiddleware(a.guard)
	a.sessions()
	a.messages()
	a.branches()
	a.chats()
	a.openAIOperations()
	a.agui()
	a.runs()
	a.approvals()
	a.toolResults()
	a.audit()
	a.tools()
	a.mcpServers()
	a.models()
	a.usage()
	a.presets()
	a.documents()
	a.shares()
	a.workspaces()
	a.browser()
	a.company()
	a.invitations()
	a.keys()
	a.accounts()
	a.connections()
	describe(a.huma.OpenAPI())
	a.spec = sync.OnceValue(func() []byte {
		data, err := json.Marshal(a.huma.OpenAPI())
		if err != nil {
			panic(fmt.Errorf("write the OpenAPI document: %w", err)) // an operation is described wrongly
		}
		return data
	})
	return a
}

// Spec returns the OpenAPI 3.1 document. The first call generates it, which takes some time.
func (a *API) Spec() []byte { return a.spec() }

// ServeHTTP serves the operations, and answers everything else with an error in our form.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h, pattern := a.mux.Handler(r); pattern == "" {
		notRouted(w, r, h)
		return
	}
	a.mux.ServeHTTP(w, r) // unlike h, it sets the path's values
}

// notRouted answers a request with an unknown path or method. The status of the mux's own
// answer tells which of the two it is.
func notRouted(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	e := &Error{status: http.StatusNotFound, Message: "there is no such path: " + clip(r.URL.Path)}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		e = &Error{status: probe.status, Message: fmt.Sprintf("%s is not allowed here: use %s", clip(r.Method), allow), header: http.Header{"Allow": {allow}}}
	}
	e.likeOpenAI = strings.HasPrefix(r.URL.Path, "/v1/")
	e.write(w)
}

// probe records the status and the headers of an answer.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }

// access says who may use an operation.
type access struct {
	role identity.Role
	// workspace says where the workspace's id comes from.
	workspace source
	// urlToken accepts the token in the URL: EventSource cannot set headers.
	urlToken bool
	// people refuses API keys.
	people bool
	// page is for browsers that a provider sends back, without a token.
	page bool
	// open is for callers without a token.
	open bool
	// share is for holders of a share link.
	share bool
	// likeOpenAI gives errors the form that OpenAI's clients know.
	likeOpenAI bool
}

// Who may use most operations.
var (
	viewers = access{role: identity.Viewer}
	editors = access{role: identity.Editor}
	owners  = access{role: identity.Owner}
)

// inPerson refuses API keys: the holder of a key acts in its workspace, but decides neither
// who else does nor what happens to the accounts of the person who created it.
func (a access) inPerson() access {
	a.people = true
	return a
}

// withURLToken accepts the token in the URL.
func (a access) withURLToken() access {
	a.urlToken = true
	return a
}

type source uint8

const (
	fromHeader  source = iota // X-Workspace-Id or ?workspace_id=
	fromPath                  // the path's {id}
	fromNowhere               // the operation concerns the person
)

const accessKey = "access"

// op describes an operation. route is its method and path.
func op(operationID, route, tag, summary string, with ...func(*huma.Operation)) huma.Operation {
	method, path, _ := strings.Cut(route, " ")
	o := huma.Operation{OperationID: operationID, Method: method, Path: path, Tags: []string{tag}, Summary: summary}
	for _, f := range with {
		f(&o)
	}
	return o
}

// about sets an operation's description.
func about(text string) func(*huma.Operation) {
	return func(o *huma.Operation) { o.Description = text }
}

// created makes an operation answer 201.
func created(o *huma.Operation) { o.DefaultStatus = http.StatusCreated }

// maxBody bounds an operation's request body; limitJSON is the default.
func maxBody(n int64) func(*huma.Operation) {
	return func(o *huma.Operation) { o.MaxBodyBytes = n }
}

// answers describes the responses of an operation that writes its own.
func answers(responses map[string]*huma.Response) func(*huma.Operation) {
	return func(o *huma.Operation) { o.Responses = responses }
}

// handle registers an operation whose answer is a body. See register.
func handle[I, B any](a *API, op huma.Operation, who access, h func(context.Context, *I) (*B, error)) {
	register(a, op, who, func(ctx context.Context, in *I) (*struct{ Body B }, error) {
		body, err := h(ctx, in)
		if err != nil {
			return nil, err
		}
		return &struct{ Body B }{*body}, nil
	})
}

// register registers an operation. An error of h is converted to its public form; an
// internal one is logged and not shown.
func register[I, O any](a *API, op huma.Operation, who access, h func(context.Context, *I) (*O, error)) {
	op.Metadata = map[string]any{accessKey: who}
	op.SkipValidateBody = true // decodeJSON validates; doing it twice is too slow for 20 MiB
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = limitJSON
	}
	op.BodyReadTimeout = a.cfg.BodyTimeout * time.Duration(3+op.MaxBodyBytes>>20) / 4
	op.MaxBodyBytes++ // huma refuses a body of exactly the limit
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			e := a.failure(ctx, op.OperationID, err)
			e.likeOpenAI = who.likeOpenAI
			return nil, e
		}
		return out, nil
	})
}

// answer converts the result of a service's call to a body, or returns the call's error.
func answer[R, B any](res R, err error, body func(R) B) (*B, error) {
	if err != nil {
		return nil, err
	}
	return new(body(res)), nil
}

// each converts a list. It never returns nil, which would be null in JSON.
func each[T, V any](in []T, convert func(T) V) []V {
	out := make([]V, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
