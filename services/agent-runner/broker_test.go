package agentrunner_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
)

// fakeBroker is a credential broker with an egress. At first it has an account for Anthropic.
type fakeBroker struct {
	credentialv1connect.UnimplementedAccountServiceHandler

	mu        sync.Mutex // guards what follows
	providers []*credentialv1.Provider
	away      bool
	lists     map[string]string // answers to GET /v1/models by provider; "" is a failure
	listed    int               // how often a list was asked for
}

func (w *world) newBroker() {
	w.t.Helper()
	w.accounts = &fakeBroker{
		providers: []*credentialv1.Provider{{Name: "anthropic", Origin: credentialv1.Origin_ORIGIN_SHARED, Dialect: "anthropic"}},
		lists:     map[string]string{},
	}
	mux := http.NewServeMux()
	mux.Handle(credentialv1connect.NewAccountServiceHandler(w.accounts, w.authOf(subject.CredentialBroker)...))
	mux.HandleFunc("GET /egress/{provider}/v1/models", w.accounts.list)
	mux.Handle("/egress/", w.model)
	w.broker = serve(w.t, mux)
}

// setProviders sets the providers.
func (p *fakeBroker) setProviders(providers ...*credentialv1.Provider) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.providers = providers
}

// lose makes the broker unavailable, or available again.
func (p *fakeBroker) lose(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// answer sets the models that a provider lists.
func (p *fakeBroker) answer(provider, list string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lists[provider] = list
}

// asked returns how often providers were asked for their models.
func (p *fakeBroker) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listed
}

func (p *fakeBroker) ListProviders(context.Context, *credentialv1.ListProvidersRequest) (*credentialv1.ListProvidersResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, fault.New(fault.Unavailable, "away")
	}
	return &credentialv1.ListProvidersResponse{Providers: p.providers}, nil
}

func (p *fakeBroker) list(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed++
	list := p.lists[r.PathValue("provider")]
	if list == "" || r.Header.Get(identity.Header) == "" {
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, `{"error":{"type":"api_error","message":"localhost:11434 cannot be reached: connection refused"}}`)
		return
	}
	fmt.Fprint(w, list)
}
