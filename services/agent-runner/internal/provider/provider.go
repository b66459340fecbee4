// Package provider finds the way to a model provider: always through the broker's
// egress, which knows the credentials; here a request only proves on whose behalf
// it is made. It also knows which models a workspace can call, and which one answers to a
// wish (models.go): the accounts are the broker's to know, the models the catalogue's and,
// of servers that everybody fills as they like, the providers' own lists (listing.go).
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

// Config says how the broker is reached.
type Config struct {
	// BrokerURL is its base URL, such as http://credential-broker:8084.
	BrokerURL string
	HTTP      *http.Client
	Signer    *identity.Signer
	Accounts  credentialv1connect.AccountServiceClient
	// FirstByte bounds the wait for a model's first word, Idle its silence after that.
	FirstByte, Idle time.Duration
	// Catalogue knows what models can do, Prices what they cost.
	Catalogue *catalogue.Catalogue
	Prices    *price.List
	// DefaultModel of DefaultProvider is for sessions that name nothing, where the
	// workspace can call that provider and it does not list others alone.
	DefaultProvider, DefaultModel string
}

// Providers makes model clients. It is safe for concurrent use.
type Providers struct {
	cfg Config

	mu      sync.Mutex // guards what follows
	clients map[string]client
	before  map[id.Workspace][]*credentialv1.Provider // as the broker said last
	lists   map[place]list
}

type client struct {
	dialect string
	model   loop.Model
}

const maxClients = 256

// New returns providers.
func New(cfg Config) *Providers {
	return &Providers{
		cfg: cfg, clients: map[string]client{}, before: map[id.Workspace][]*credentialv1.Provider{}, lists: map[place]list{},
	}
}

// For returns a provider's dialect and its client. The context carries the run's
// identity. A provider that the workspace cannot call is an Invalid fault.
func (p *Providers) For(ctx context.Context, name string) (string, loop.Model, error) {
	// Two workspaces may mean different things by a name of their own.
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

// dialect is known for the providers that ship; of others the broker knows it.
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

// base is where the egress leads to a provider.
func (p *Providers) base(name string) string {
	return strings.TrimRight(p.cfg.BrokerURL, "/") + "/egress/" + url.PathEscape(name)
}

// sign proves to the broker on whose behalf a request is made.
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
