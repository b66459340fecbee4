package service

import (
	"context"
	"fmt"
	"net"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Options configure Open. A service leaves the parts that it does not need empty.
type Options struct {
	Name        string      // as in package subject
	Addr        string      // where to listen
	AddrSetting string      // the environment variable of Addr, for errors
	ServiceKey  conf.Secret // the key that signs calls to other services
	TrustedKeys string      // the keys of services that may call this one
	Database    pg.Config
	Bus         bus.Config
}

// Parts are the opened parts of a service.
type Parts struct {
	Listener net.Listener
	Signer   *identity.Signer
	Verifier *identity.Verifier
	DB       *pg.DB
	Bus      *bus.Bus
}

// Open opens parts without waiting for Postgres or NATS: a service starts while they are down,
// and is not ready. Errors name the setting to change. After an error nothing stays open;
// otherwise the caller closes the parts.
func Open(ctx context.Context, env Env, o Options) (_ *Parts, err error) {
	p := &Parts{}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if o.ServiceKey != "" {
		if p.Signer, err = identity.OpenSigner(o.Name, o.ServiceKey.Reveal()); err != nil {
			return nil, fmt.Errorf("SERVICE_KEY: %w", err)
		}
	}
	if o.TrustedKeys != "" {
		if p.Verifier, err = identity.OpenVerifier(o.Name, o.TrustedKeys); err != nil {
			return nil, fmt.Errorf("TRUSTED_KEYS: %w", err)
		}
	}
	if o.Database.Role != "" {
		o.Database.Application = o.Name
		if p.DB, err = pg.Open(ctx, o.Database); err != nil {
			return nil, fmt.Errorf("DATABASE_URL: %w", err)
		}
		env.Registry.MustRegister(p.DB.Collector())
	}
	if o.Bus.URL != "" {
		o.Bus.Service, o.Bus.Log, o.Bus.Metrics = o.Name, env.Log, env.Registry
		if p.Bus, err = bus.Connect(ctx, o.Bus); err != nil {
			return nil, err
		}
	}
	if p.Listener, err = httpserver.Listen(ctx, o.Addr); err != nil {
		return nil, fmt.Errorf("%s: %w", o.AddrSetting, err)
	}
	env.Log.InfoContext(ctx, "serving", "address", p.Listener.Addr().String())
	return p, nil
}

// Close closes the listener, unless the service has closed it, and the connections to NATS and
// Postgres.
func (p *Parts) Close() {
	if p.Listener != nil {
		_ = p.Listener.Close()
	}
	if p.Bus != nil {
		p.Bus.Close()
	}
	if p.DB != nil {
		p.DB.Close()
	}
}
