// Package brokertest is a credential broker for tests: it checks who asks, and forwards
// requests to a handler in place of the providers.
package brokertest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
)

// Broker is a broker. Every provider is connected until Set says otherwise.
type Broker struct {
	credentialv1connect.UnimplementedConnectionServiceHandler

	apis     http.Handler
	verifier *identity.Verifier

	mu     sync.Mutex // guards what follows
	states map[string]credentialv1.ConnectionState
	lists  int
	down   bool
}

// Start serves a broker until the test ends, for callers who sign with tool-executor's key, and
// returns it and its URL. Requests for /egress/google/… reach apis as /google/…, with the
// workspace as their bearer token.
func Start(t testing.TB, apis http.Handler, key identity.Key) (b *Broker, url string) {
	t.Helper()
	verifier, err := identity.NewVerifier(subject.CredentialBroker, map[string]string{subject.ToolExecutor: key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	b = &Broker{apis: apis, verifier: verifier, states: map[string]credentialv1.ConnectionState{}}
	options, err := rpc.Server{Verifier: verifier, Log: natstest.Log(t)}.HandlerOptions()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(credentialv1connect.NewConnectionServiceHandler(b, options...))
	mux.HandleFunc("/egress/", b.forward)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return b, srv.URL
}

// Set changes how the connection to a provider stands.
func (b *Broker) Set(provider string, state credentialv1.ConnectionState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.states[provider] = state
}

// Down makes the broker refuse everything, or ends that.
func (b *Broker) Down(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

// Lists returns how often it was asked for connections.
func (b *Broker) Lists() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lists
}

// ListConnections implements ConnectionService.
func (b *Broker) ListConnections(ctx context.Context, _ *credentialv1.ListConnectionsRequest) (*credentialv1.ListConnectionsResponse, error) {
	if _, err := identity.Require(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lists++
	if b.down {
		return nil, fault.New(fault.Unavailable, "the broker is down")
	}
	res := &credentialv1.ListConnectionsResponse{}
	for _, p := range []string{"github", "google", "notion"} {
		state := credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED
		if s, ok := b.states[p]; ok {
			state = s
		}
		res.Connections = append(res.Connections, &credentialv1.Connection{Provider: p, Title: p, State: state, Reason: "the test says so"})
	}
	return res, nil
}

func (b *Broker) forward(w http.ResponseWriter, r *http.Request) {
	actor, err := b.verifier.Verify(r.Header.Get(identity.Header))
	provider, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/egress/"), "/")
	b.mu.Lock()
	state, set := b.states[provider]
	down := b.down
	b.mu.Unlock()
	switch {
	case down:
		w.WriteHeader(http.StatusBadGateway)
	case err != nil || actor.Role < identity.Editor:
		w.WriteHeader(http.StatusForbidden)
	case set && state != credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED:
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(refusals[provider])) // the client may have left
	default:
		out := r.Clone(r.Context())
		out.URL.Path, out.URL.RawPath = strings.TrimPrefix(r.URL.Path, "/egress"), strings.TrimPrefix(r.URL.RawPath, "/egress")
		out.Header.Set("Authorization", "Bearer "+actor.Workspace.String())
		b.apis.ServeHTTP(w, out)
	}
}

// refusals are the broker's words for a provider without an account, in the provider's format.
var refusals = map[string]string{
	"google": `{"error":{"code":401,"message":"there is no credential","status":"UNAUTHENTICATED","errors":[{"message":"there is no credential","domain":"global","reason":"no_credential"}]}}`,
	"notion": `{"object":"error","status":401,"code":"unauthorized","message":"there is no credential","additional_data":{"code":"no_credential"}}`,
	"github": `{"message":"there is no credential","code":"no_credential"}`,
}
