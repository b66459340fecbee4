package credentialbroker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Config is what an operator can set. New fills in the default of each timeout and limit
// that is zero; cmd/credential-broker uses the address, the database, the trusted keys and
// the processors itself, to open Deps.
type Config struct {
	Addr          string      `env:"CREDENTIAL_BROKER_ADDR" envDefault:":8084" doc:"Address of the listener for the egress, calls of other services, /health, /ready and /metrics."`
	DatabaseURL   conf.Secret `env:"DATABASE_URL" doc:"Postgres, as postgres://user:password@host:5432/database; the user is signalbox_credentials or a member of it. Needed unless CREDENTIAL_BROKER_ACCOUNTS_FILE is set."`
	DatabaseConns int32       `env:"DATABASE_CONNS" envDefault:"10" doc:"Maximum number of connections to PostgreSQL."`
	AccountsFile  string      `env:"CREDENTIAL_BROKER_ACCOUNTS_FILE" doc:"File that stores the accounts of a single user instead of a database, on a local disk; it is created if it is missing. The broker then uses no bus, and workspaces have no accounts of their own. The audit is a file beside it. signalbox accounts works with it too. If the file is damaged, requests are refused until it is repaired; the log says how."`
	NATSURL       string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas, over which instances share what they learn about accounts. Not used with CREDENTIAL_BROKER_ACCOUNTS_FILE."`
	NATSUser      string      `env:"NATS_USER" envDefault:"credential-broker" doc:"User on the bus."`
	NATSPassword  conf.Secret `env:"NATS_PASSWORD" doc:"Password on the bus; empty if the servers require none."`
	NATSCA        string      `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted; empty: those of TLS_CA_FILE, or the system's without that."`
	TrustedKeys   string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call (gateway, agent-runner, tool-executor), as name=key pairs separated by commas."`
	KeyFile       string      `env:"CREDENTIAL_BROKER_KEY_FILE" doc:"File with the key that seals stored credentials; created if it is missing. Keep its backup apart from the database's. Needed unless CREDENTIAL_BROKER_KEY_URL is set."`

	Profiles string `env:"CREDENTIAL_BROKER_PROFILES" doc:"Folder with request profiles of your own (*.yaml), which add to the built-in ones or replace them; read at the start. Empty for none."`

	ModelPrices string `env:"MODEL_PRICES" doc:"File with prices of models (JSON, as pkg/price/prices.json) that override the built-in ones; empty for none. Give agent-runner the same."`

	AllowPrivate bool `env:"CREDENTIAL_BROKER_ALLOW_PRIVATE" envDefault:"false" doc:"Allows accounts with base URLs on loopback and private addresses, over http too, and on any port: for your own model servers."`
	// AllowLoopback allows base URLs on this machine for the operator's shared accounts, also
	// over http: for a Signalbox in one process.
	AllowLoopback bool

	SimulatorURL string `env:"SIMULATOR_URL" doc:"Base URL of the simulated provider, which is named simulator and never replaces another; empty for none."`

	SimulatedServices bool `env:"SIMULATED_SERVICES" envDefault:"false" doc:"Lets the simulator at SIMULATOR_URL (with SIMULATOR_SERVICES) stand in for Google, Notion and GitHub in workspaces that have not connected them: for development. Results of tools say that they are simulated."`

	Keys        admin.Keys
	Environment admin.Environment
	OAuth       admin.OAuth

	Procs int `env:"CREDENTIAL_BROKER_PROCS" envDefault:"1" doc:"Processors to use. One forwards more than a hundred thousand events a second with the least latency; beyond that, replicas scale better than processors. With 0, or if GOMAXPROCS is set, Go decides."`

	HeadersTimeout    time.Duration `env:"CREDENTIAL_BROKER_HEADERS_TIMEOUT" doc:"How long a provider may take to begin an answer; empty for the values of the request profiles."`
	FirstEventTimeout time.Duration `env:"CREDENTIAL_BROKER_FIRST_EVENT_TIMEOUT" envDefault:"5m" doc:"How long the first event of a stream may take after its headers."`
	IdleTimeout       time.Duration `env:"CREDENTIAL_BROKER_IDLE_TIMEOUT" envDefault:"3m" doc:"How long an answer may pause."`
	GateTimeout       time.Duration `env:"CREDENTIAL_BROKER_GATE_TIMEOUT" envDefault:"10s" doc:"How long a stream without content is held back, so that another account can still be tried."`
	WriteTimeout      time.Duration `env:"CREDENTIAL_BROKER_WRITE_TIMEOUT" envDefault:"30s" doc:"How long a caller may take to read a piece of an answer."`
	Drain             time.Duration `env:"CREDENTIAL_BROKER_DRAIN" envDefault:"25s" doc:"How long open requests may continue after a signal to stop."`
	MaxRequests       int64         `env:"CREDENTIAL_BROKER_MAX_REQUESTS" envDefault:"4096" doc:"Requests that may be open at once. One workspace may have half of that number open."`
	MaxBodies         int64         `env:"CREDENTIAL_BROKER_MAX_BODIES" envDefault:"1073741824" doc:"Bytes of request bodies that may be in memory at once. One workspace may use half of them; beyond that, its requests wait briefly."`

	TLS       mtls.Config
	Telemetry telemetry.Config
}

// Validate says what is wrong, and what is allowed.
func (c *Config) Validate() error {
	_, simulator := c.simulator()
	_, environment := c.environmentAccounts()
	errs := []error{simulator, environment, c.checkServices(), c.OAuth.Validate(), c.Keys.Check(c.KeyFile), c.checkStorage()}
	for name, d := range map[string]time.Duration{
		"CREDENTIAL_BROKER_HEADERS_TIMEOUT": c.HeadersTimeout, "CREDENTIAL_BROKER_FIRST_EVENT_TIMEOUT": c.FirstEventTimeout,
		"CREDENTIAL_BROKER_IDLE_TIMEOUT": c.IdleTimeout, "CREDENTIAL_BROKER_GATE_TIMEOUT": c.GateTimeout,
		"CREDENTIAL_BROKER_WRITE_TIMEOUT": c.WriteTimeout, "CREDENTIAL_BROKER_DRAIN": c.Drain,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %s: use a time such as 30s or 5m", name, d))
		}
	}
	if c.Procs < 0 {
		errs = append(errs, errors.New("CREDENTIAL_BROKER_PROCS must not be negative"))
	}
	if c.MaxRequests < 0 || c.MaxBodies < 0 {
		errs = append(errs, errors.New("CREDENTIAL_BROKER_MAX_REQUESTS and CREDENTIAL_BROKER_MAX_BODIES must not be negative"))
	}
	return errors.Join(errs...)
}

// checkStorage says what is wrong unless exactly one place for accounts is named.
func (c *Config) checkStorage() error {
	switch {
	case c.DatabaseURL == "" && c.AccountsFile == "":
		return errors.New("DATABASE_URL is not set: name a database or, for the accounts of a single user, a file in CREDENTIAL_BROKER_ACCOUNTS_FILE")
	case c.DatabaseURL != "" && c.AccountsFile != "":
		return errors.New("DATABASE_URL and CREDENTIAL_BROKER_ACCOUNTS_FILE are both set: accounts are stored in a database or in a file, so unset one of them")
	}
	return nil
}

func (c *Config) simulator() (*url.URL, error) {
	if c.SimulatorURL == "" {
		return nil, nil
	}
	return operatorURL("SIMULATOR_URL", c.SimulatorURL)
}

// services returns the accounts that the simulator has at the services that tools call.
func (c *Config) services(simulator *url.URL) (all []pool.EnvironmentAccount) {
	if !c.SimulatedServices {
		return nil
	}
	for _, provider := range pool.SimulatedServices {
		base := *simulator
		base.Path += "/" + provider
		all = append(all, pool.EnvironmentAccount{Provider: provider, BaseURL: &base, Simulated: true})
	}
	return all
}

func (c *Config) checkServices() error {
	if c.SimulatedServices && c.SimulatorURL == "" {
		return errors.New("SIMULATED_SERVICES needs SIMULATOR_URL: name the simulator, or take it away")
	}
	return nil
}

func (c *Config) timers() proxy.Timers {
	return proxy.Timers{Headers: c.HeadersTimeout, FirstEvent: c.FirstEventTimeout, Idle: c.IdleTimeout, Gate: c.GateTimeout, Write: c.WriteTimeout}
}

// environmentAccounts returns the accounts of the environment. A base URL is enough for one:
// one's own server may need no key.
func (c *Config) environmentAccounts() ([]pool.EnvironmentAccount, error) {
	var all []pool.EnvironmentAccount
	var errs []error
	for _, k := range c.Environment.Keys() {
		key := strings.TrimSpace(k.Key.Reveal())
		if key == "" && k.BaseURL == "" {
			continue
		}
		if err := admin.CheckSecret(key); key != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k.KeyVariable(), err))
		}
		a := pool.EnvironmentAccount{Provider: k.Provider, Secret: vault.NewSecret(key)}
		if k.BaseURL != "" {
			u, err := operatorURL(k.URLVariable(), k.BaseURL)
			if err == nil && strings.HasPrefix(u.Path, proxy.Prefix) {
				err = fmt.Errorf("%s is a credential broker's: use the provider's own URL", k.URLVariable())
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			a.BaseURL = u
		}
		all = append(all, a)
	}
	return all, errors.Join(errs...)
}

// operatorURL parses a base URL from the environment. The operator may use any address,
// also over http.
func operatorURL(variable, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s is not a base URL: use https://host/path, without a user, ? or #", variable)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}
