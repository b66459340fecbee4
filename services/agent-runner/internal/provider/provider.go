// Package provider finds the way to a model provider: always through the broker's
// egress, which knows the credentials; here a request only proves on whose behalf
// it is made.
package provider

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
	"signalbox.dev/services/agent-runner/internal/loop"
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
}

// Providers makes model clients. It is safe for concurrent use.
type Providers struct {
	cfg Config

	mu      sync.Mutex // guards clients
	clients map[string]client
}

type client struct {
	dialect string
	model   loop.Model
}

const maxClients = 256

// New returns providers.
func New(cfg Config) *Providers {
	return &Providers{cfg: cfg, clients: map[string]client{}}
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
	case "anthropic":
		return dialectAnthropic, nil
	case "openai", "openrouter":
		return dialectOpenAI, nil
	}
	res, err := p.cfg.Accounts.ListProviders(ctx, &credentialv1.ListProvidersRequest{})
	if err != nil {
		return "", fmt.Errorf("look for provider %s: %w", name, err)
	}
	var names []string
	for _, known := range res.GetProviders() {
		if known.GetName() == name {
			return known.GetDialect(), nil
		}
		names = append(names, known.GetName())
	}
	return "", fault.Coded(fault.Invalid, "UNKNOWN_PROVIDER", "this workspace has no provider %q: add an account for it, or use one of %s", name, strings.Join(names, ", "))
}

func (p *Providers) open(name, dialect string) (client, error) {
	base := strings.TrimRight(p.cfg.BrokerURL, "/") + "/egress/" + url.PathEscape(name)
	cfg := llm.Config{HTTP: p.cfg.HTTP, BaseURL: base, Headers: p.sign, FirstByte: p.cfg.FirstByte, Idle: p.cfg.Idle}
	var (
		model loop.Model
		err   error
	)
	if dialect == dialectAnthropic {
		model, err = anthropic.New(cfg)
		return client{anthropic.Dialect, model}, err
	}
	flavor := openai.Compatible
	switch name {
	case "openai":
		flavor = openai.OpenAI
	case "openrouter":
		flavor = openai.OpenRouter
	}
	cfg.BaseURL += "/v1"
	model, err = openai.New(cfg, flavor)
	return client{flavor.Dialect(), model}, err
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
