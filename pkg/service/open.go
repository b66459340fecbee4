package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
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
	TLS         mtls.Config
	Peers       []mtls.Peer // the services that this one calls
	Public      bool        // Addr is for people: a proxy in front of it has the certificate
}

// Parts are the opened parts of a service.
type Parts struct {
	Listener net.Listener      // with TLS, if the settings name a certificate, unless it is public
	Secure   *mtls.Credentials // nil without a certificate
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
	if err := CheckLinks(o); err != nil {
		return nil, err
	}
	if p.Secure, err = mtls.Open(o.TLS, o.Name, o.Peers, env.Log); err != nil {
		return nil, err
	}
	if p.Secure != nil {
		env.Registry.MustRegister(p.Secure.Collector())
	}
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
		o.Bus.Service, o.Bus.Log, o.Bus.Metrics, o.Bus.TLS = o.Name, env.Log, env.Registry, p.Secure
		if p.Bus, err = bus.Connect(ctx, o.Bus); err != nil {
			return nil, err
		}
	}
	if p.Listener, err = httpserver.Listen(ctx, o.Addr); err != nil {
		return nil, fmt.Errorf("%s: %w", o.AddrSetting, err)
	}
	if !o.Public {
		p.Listener = p.Secure.Listen(p.Listener)
	}
	env.Log.InfoContext(ctx, "serving", "address", p.Listener.Addr().String())
	return p, nil
}

// CheckLinks names the connections that would not be encrypted, or not be checked, if TLS is
// required.
func CheckLinks(o Options) error {
	if !o.TLS.Required {
		return nil
	}
	var problems []error
	if !o.TLS.Enabled() {
		problems = append(problems, errors.New("TLS_CERT_FILE, TLS_KEY_FILE and TLS_CA_FILE are not set"))
	}
	for _, peer := range o.Peers {
		if !strings.HasPrefix(peer.URL, "https://") {
			problems = append(problems, fmt.Errorf("%s is %q: want https", peer.Setting, peer.URL))
		}
	}
	if o.Bus.URL != "" && !o.Bus.Secure() {
		problems = append(problems, fmt.Errorf("NATS_URL is not encrypted: want tls://%s", bus.Addresses(o.Bus.URL)))
	}
	if o.Database.Role != "" {
		problems = append(problems, o.Database.CheckTLS())
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("TLS_REQUIRED is set: %w", err)
	}
	return nil
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
