// Package provider makes clients for model providers. All requests go through the broker's
// egress, which adds the credentials; a request only proves on whose behalf it is made.
//
// The package also lists the models that a workspace can call and chooses among them
// (models.go). The broker knows the accounts. The models come from the catalogue or, for
// servers with models of their own, from the provider's list (listing.go).
package provider

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
	"signalbox.dev/services/agent-runner/internal/loop"
	"signalbox.dev/services/agent-runner/internal/run"
)

// The dialects by which requests are built.
const (
	dialectAnthropic = "anthropic"
	dialectOpenAI    = "openai"
)

// Config configures Providers.
type Config struct {
	// BrokerURL is its base URL, such as http://credential-broker:8084.
	BrokerURL string
	HTTP      *http.Client
	Signer    *identity.Signer
	Accounts  credentialv1connect.AccountServiceClient
	// FirstByte bounds the wait for the start of an answer, Idle each silence after that.
	FirstByte, Idle time.Duration
	// Catalogue has the capabilities of models, Prices their prices.
	Catalogue *catalogue.Catalogue
	Prices    *price.List
	// DefaultProvider and DefaultModel are for sessions that name neither, if the workspace
	// can call that provider and the provider does not list only other models.
	DefaultProvider, DefaultModel string
}

// Providers makes model clients. It is safe for concurrent use.
type Providers struct {
	cfg Config

	mu         sync.Mutex // guards what follows
	clients    map[string]client
	lastRoutes map[id.Workspace][]*credentialv1.Provider // the last known providers
	lists      map[listKey]list
}

type client struct {
	dialect string
	model   loop.Model
}

const maxClients = 256

// New returns providers.
func New(cfg Config) *Providers {
	return &Providers{
		cfg: cfg, clients: map[string]client{}, lastRoutes: map[id.Workspace][]*credentialv1.Provider{}, lists: map[listKey]list{},
	}
}

// For returns a provider's dialect and its client. The context carries the run's identity.
// If the workspace cannot call the provider, For returns an Invalid fault.
func (p *Providers) For(ctx context.Context, name string) (string, loop.Model, error) {
	// The same name may have different dialects in two workspaces.
	dialect, err := p.dialect(ctx, name)
	if err != nil {
		return "", nil, err
	}
	key := name + " " + dialect
	p.mu.Lock()
	known, ok := p.clients[key]
	p.mu.Unlock()
	if ok {
		return known.dialect, known.model, nil
	}
	c, err := p.open(name, dialect)
	if err != nil {
		return "", nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.clients) >= maxClients {
		clear(p.clients)
	}
	p.clients[key] = c
	return c.dialect, c.model, nil
}

// dialect returns the dialect of a well-known provider, or asks the broker for it.
func (p *Providers) dialect(ctx context.Context, name string) (string, error) {
	switch name {
	case "anthropic", run.Simulator:
		return dialectAnthropic, nil
	case "openai", "openrouter", run.Simulator + "-openai", run.Simulator + "-openrouter":
		return dialectOpenAI, nil
	}
	routes, err := p.routes(ctx)
	if err != nil {
		return "", err
	}
	for _, known := range routes {
		if known.GetName() == name {
			return known.GetDialect(), nil
		}
	}
	return "", unknownProvider(name, routes)
}

func (p *Providers) open(name, dialect string) (client, error) {
	cfg := llm.Config{HTTP: p.cfg.HTTP, BaseURL: p.base(name), Headers: p.sign, FirstByte: p.cfg.FirstByte, Idle: p.cfg.Idle}
	var (
		model loop.Model
		err   error
	)
	if dialect == dialectAnthropic {
		model, err = anthropic.New(cfg)
		return client{anthropic.Dialect, model}, err
	}
	flavor := openai.Compatible
	switch strings.TrimPrefix(name, run.Simulator+"-") {
	case "openai":
		flavor = openai.OpenAI
	case "openrouter":
		flavor = openai.OpenRouter
	}
	cfg.BaseURL += "/v1"
	model, err = openai.New(cfg, flavor)
	return client{flavor.Dialect(), model}, err
}

// base returns the egress URL of a provider.
func (p *Providers) base(name string) string {
	return strings.TrimRight(p.cfg.BrokerURL, "/") + "/egress/" + url.PathEscape(name)
}

// sign returns the header that proves to the broker on whose behalf a request is made.
func (p *Providers) sign(ctx context.Context) (http.Header, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	token, err := p.cfg.Signer.Sign(actor, subject.CredentialBroker)
	if err != nil {
		return nil, err
	}
	return http.Header{identity.Header: {token}}, nil
}
