package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"
)

// untitled keeps models that answer as scripted, call by call, from being asked for titles.
const untitled = "AGENT_RUNNER_TITLE_MODEL=off"

// service describes a service of the cluster.
type service struct {
	name, role string            // role is its login at the database
	peers      map[string]string // variable → service
}

var cluster = []service{
	{name: subject.CredentialBroker, role: "signalbox_credentials"},
	{name: subject.DocumentSync, role: "signalbox_documents"},
	{name: subject.ToolExecutor, role: "signalbox_tools", peers: map[string]string{
		"DOCUMENT_SYNC_URL": subject.DocumentSync, "CREDENTIAL_BROKER_URL": subject.CredentialBroker,
	}},
	{name: subject.AgentRunner, role: "signalbox_agent", peers: map[string]string{
		"TOOL_EXECUTOR_URL": subject.ToolExecutor, "CREDENTIAL_BROKER_URL": subject.CredentialBroker,
	}},
	{name: subject.Gateway, role: "signalbox_gateway", peers: map[string]string{
		"AGENT_RUNNER_URL": subject.AgentRunner, "TOOL_EXECUTOR_URL": subject.ToolExecutor, "DOCUMENT_SYNC_URL": subject.DocumentSync,
		"CREDENTIAL_BROKER_URL": subject.CredentialBroker,
	}},
}

// maker builds a cluster.
type maker struct {
	*World
	natsAddr, natsMonitor, simulator string
	provided                         *provided         // nil without a pooler
	nats                             map[string]string // user → password
	logins                           map[string]string // role → password
	keys                             map[string]identity.Key
	trusted                          string
	addrs                            map[string][]string // service → address of each replica
}

// Start runs a cluster and returns when all parts are ready. The caller closes the world, even
// after an error. With the environment variable Attached it uses an installation that is there.
func Start(ctx context.Context, o Options) (*World, error) {
	if file := os.Getenv(Attached); file != "" {
		return attach(file, o)
	}
	w, err := newWorld(o)
	if err != nil {
		return nil, err
	}
	m := &maker{
		World: w, nats: map[string]string{}, logins: map[string]string{}, keys: map[string]identity.Key{}, addrs: map[string][]string{},
	}
	w.migrate, w.secret = m.runMigrate, devSecret
	w.bus = func(service string) bus.Config {
		return bus.Config{URL: m.scheme("nats", "tls") + m.natsAddr, Service: service, Password: conf.Secret(m.nats[service]), Log: slog.New(slog.DiscardHandler)}
	}
	var settings []string
	if w.opts.Pooler {
		if m.provided, err = provide(w.opts.DataDir); err != nil {
			return w, err
		}
		w.rotate, settings = m.rotateLogins, m.provided.settings()
	}
	if w.Postgres, err = startPostgres(ctx, filepath.Join(w.opts.DataDir, "pg"), w.opts, settings); err != nil {
		return w, err
	}
	if err := w.Postgres.Ready(ctx); err != nil {
		return w, err
	}
	if m.provided != nil {
		if err := m.provided.setUp(ctx, w.Postgres.current()); err != nil {
			return w, err
		}
	}
	w.Database = w.Postgres.current().URL(database)
	w.TokenEnv = []string{"DATABASE_URL=" + w.Database, "GATEWAY_DEV_SECRET=" + devSecret}
	if err := m.invent(); err != nil {
		return w, err
	}
	if err := m.startNATS(ctx); err != nil {
		return w, err
	}
	if err := w.Migrate(ctx); err != nil {
		return w, err
	}
	if err := m.startPooler(ctx); err != nil {
		return w, err
	}
	w.Simulator = "http://" + m.simulator
	if _, err := w.start(ctx, spec{
		name: SimulatorName, service: SimulatorName, replica: 1, addr: m.simulator, ops: w.Simulator, health: w.Simulator + "/simulator/scripts",
		env: []string{"SIMULATOR_ADDR=" + m.simulator, "SIMULATOR_SERVICES=true", "LOG_LEVEL=" + w.opts.LogLevel},
	}); err != nil {
		return w, err
	}
	for _, s := range cluster {
		for replica := range w.opts.Replicas {
			if err := m.startService(ctx, s, replica); err != nil {
				return w, err
			}
		}
	}
	return w, nil
}

// invent generates all addresses, passwords and keys.
func (m *maker) invent() error {
	var errs []error
	addr := func() string {
		a, err := freeport.Addr()
		errs = append(errs, err)
		return a
	}
	m.natsAddr, m.natsMonitor, m.simulator = addr(), addr(), addr()
	for _, user := range append([]string{subject.Admin}, Services()...) {
		m.nats[user] = "p" + strings.ReplaceAll(id.New[id.Run]().String(), "-", "")
	}
	trusted := map[string]string{}
	for _, s := range cluster {
		key, err := identity.NewKey()
		errs = append(errs, err)
		m.keys[s.name], trusted[s.name] = key, key.Public()
		m.logins[s.role] = "p-" + id.New[id.Run]().String()
		for range m.opts.Replicas {
			m.addrs[s.name] = append(m.addrs[s.name], addr())
		}
	}
	m.trusted = identity.FormatTrusted(trusted)
	return errors.Join(errs...)
}

// startNATS runs the server with the accounts of deploy.
func (m *maker) startNATS(ctx context.Context) error {
	root, err := Checkout()
	if err != nil {
		return err
	}
	accounts, err := os.ReadFile(filepath.Join(root, "deploy/nats/accounts.conf"))
	if err != nil {
		return err
	}
	secure := ""
	if m.opts.TLS != "" {
		at := func(file string) string { return filepath.Join(m.opts.TLS, NATSName, file) }
		secure = fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", at("tls.crt"), at("tls.key"), at("ca.crt"))
	}
	config := secure + fmt.Sprintf("listen: %s\nhttp: %s\nmax_payload: %d\njetstream { store_dir: %q, max_file_store: 8G, sync_interval: \"100ms\" }\ninclude ./accounts.conf\n",
		m.natsAddr, m.natsMonitor, subject.MaxMessage, m.natsDir)
	file := filepath.Join(m.Dir, "nats.conf")
	if err := errors.Join(os.WriteFile(filepath.Join(m.Dir, "accounts.conf"), accounts, 0o600), os.WriteFile(file, []byte(config), 0o600)); err != nil {
		return err
	}
	var env []string
	for user, password := range m.nats {
		env = append(env, subject.PasswordVariable(user)+"="+password)
	}
	slices.Sort(env)
	monitor := "http://" + m.natsMonitor
	_, err = m.start(ctx, spec{
		name: NATSName, service: NATSName, replica: 1, path: m.program("nats-server", 1), addr: m.natsAddr, ops: monitor,
		health: monitor + "/healthz", args: []string{"-c", file}, env: env,
	})
	return err
}

// startPooler runs PgBouncer if the world has one. It does so after the migration, which gives
// the roles their settings.
func (m *maker) startPooler(ctx context.Context) error {
	if m.provided == nil {
		return nil
	}
	program, err := pgd.FindPooler()
	if err != nil {
		return err
	}
	p := m.provided.pooler(m.logins)
	args, err := p.Configure()
	if err != nil {
		return err
	}
	_, err = m.start(ctx, spec{
		name: PoolerName, service: PoolerName, replica: 1, path: program, addr: p.Addr, health: "tcp://" + p.Addr, args: args, as: p.As, killed: true,
	})
	return errors.Join(err, m.provided.writePasswords(m.logins))
}

// rotateLogins does what docs/operate.md says about a service's database password.
func (m *maker) rotateLogins(ctx context.Context) error {
	for role := range m.logins {
		m.logins[role] = "p-" + id.New[id.Run]().String()
	}
	if err := m.runMigrate(ctx); err != nil {
		return err
	}
	if err := m.provided.pooler(m.logins).WriteLogins(); err != nil {
		return err
	}
	return errors.Join(m.Proc(PoolerName).Signal(syscall.SIGHUP), m.provided.writePasswords(m.logins))
}

func (m *maker) runMigrate(context.Context) error {
	admin := m.Database
	if m.provided != nil {
		admin = m.provided.owner()
	}
	env := []string{
		"DATABASE_URL=" + admin, "NATS_URL=" + m.scheme("nats", "tls") + m.natsAddr, "NATS_PASSWORD=" + m.nats[subject.Admin],
		fmt.Sprintf("EVENT_PARTITIONS=%d", m.opts.Partitions),
	}
	env = append(env, m.certificates(subject.Gateway)...) // any of them: only NATS is called
	for _, s := range cluster {
		env = append(env, Variable(s.name)+"_DB_PASSWORD="+m.logins[s.role])
	}
	p, err := run(spec{name: "migrate", path: m.program("signalbox", 1), dir: m.Dir, args: []string{"migrate"}, env: env})
	if err != nil {
		return err
	}
	<-p.Done()
	if err := p.Ended(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, p.Tail(4000))
	}
	return nil
}

// Variable returns the prefix of a service's own settings.
func Variable(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_"))
}

func (m *maker) startService(ctx context.Context, s service, replica int) error {
	addr := m.addrs[s.name][replica]
	name := fmt.Sprintf("%s-%d", s.name, replica+1)
	env, err := m.environment(s, replica, name)
	if err != nil {
		return err
	}
	ops, addrVariable, scheme := addr, Variable(s.name)+"_ADDR", m.scheme("http", "https")
	if s.name == subject.Gateway {
		addrVariable = "GATEWAY_HTTP_ADDR"
		if ops, err = freeport.Addr(); err != nil {
			return err
		}
		env = append(env, "GATEWAY_OPS_ADDR="+ops)
		m.Gateways = append(m.Gateways, "http://"+addr)
		scheme = "http://" // its public listener
	}
	_, err = m.start(ctx, spec{
		name: name, service: s.name, replica: replica + 1, addr: addr, ops: m.scheme("http", "https") + ops, health: scheme + addr + "/ready",
		env: append(env, addrVariable+"="+addr),
	})
	return err
}

// environment returns a service's settings.
func (m *maker) environment(s service, replica int, name string) ([]string, error) {
	through, direct, err := m.databaseURLs(s.role, name)
	if err != nil {
		return nil, err
	}
	nats, err := m.via(Link{From: name, To: NATSName, Network: "tcp", Address: m.natsAddr})
	if err != nil {
		return nil, err
	}
	env := []string{
		"DATABASE_URL=" + through, "DATABASE_DIRECT_URL=" + direct, "NATS_URL=" + m.scheme("nats", "tls") + nats, "NATS_PASSWORD=" + m.nats[s.name],
		"SERVICE_KEY=" + m.keys[s.name].Encode(), "TRUSTED_KEYS=" + m.trusted,
		fmt.Sprintf("EVENT_PARTITIONS=%d", m.opts.Partitions), "LOG_LEVEL=" + m.opts.LogLevel,
	}
	if m.opts.Traces != "" {
		env = append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+m.opts.Traces, "OTEL_BSP_SCHEDULE_DELAY=200")
	}
	switch s.name {
	case subject.Gateway:
		env = append(env, "GATEWAY_DEV_SECRET="+devSecret)
	case subject.AgentRunner:
		env = append(env, untitled)
	case subject.ToolExecutor:
		env = append(env, "RESEARCH_REPO=signalbox/research") // the simulator's
	case subject.CredentialBroker:
		simulator, err := m.via(Link{From: name, To: SimulatorName, Network: "tcp", Address: m.simulator})
		if err != nil {
			return nil, err
		}
		env = append(env, "SIMULATOR_URL=http://"+simulator, "SIMULATED_SERVICES=true", "CREDENTIAL_BROKER_KEY_FILE="+filepath.Join(m.Dir, "broker.key"))
	}
	for variable, peer := range s.peers {
		// Each replica calls the next replica of other services: the first calls the second.
		n := (replica + 1) % m.opts.Replicas
		addr, err := m.via(Link{From: name, To: fmt.Sprintf("%s-%d", peer, n+1), Network: "tcp", Address: m.addrs[peer][n]})
		if err != nil {
			return nil, err
		}
		env = append(env, variable+"="+m.scheme("http", "https")+addr)
	}
	return append(env, m.certificates(s.name)...), nil
}

// scheme returns one of the two schemes, for connections without and with TLS.
func (m *maker) scheme(plain, secure string) string {
	if m.opts.TLS == "" {
		return plain + "://"
	}
	return secure + "://"
}

// certificates returns the settings of a service's TLS.
func (m *maker) certificates(service string) []string {
	if m.opts.TLS == "" {
		return nil
	}
	at := func(file string) string { return filepath.Join(m.opts.TLS, service, file) }
	return []string{"TLS_CERT_FILE=" + at("tls.crt"), "TLS_KEY_FILE=" + at("tls.key"), "TLS_CA_FILE=" + at("ca.crt"), "TLS_REQUIRED=true"}
}

func (m *maker) via(l Link) (string, error) {
	if m.opts.Via == nil {
		return l.Address, nil
	}
	addr, err := m.opts.Via(l)
	if err != nil {
		return "", fmt.Errorf("way from %s to %s: %w", l.From, l.To, err)
	}
	return addr, nil
}

// databaseURLs returns the URL with which a service logs in to the database, and, if that goes
// through a pooler, the one of the server itself.
func (m *maker) databaseURLs(role, from string) (through, direct string, err error) {
	if m.provided != nil {
		return m.provided.urls(role, func(to, address string) (string, error) {
			return m.via(Link{From: from, To: to, Network: "tcp", Address: address})
		})
	}
	u, err := url.Parse(m.Database)
	if err != nil {
		return "", "", err
	}
	u.User = url.UserPassword(role, m.logins[role])
	socket := m.Postgres.socket()
	addr, err := m.via(Link{From: from, To: PostgresName, Network: "unix", Address: socket})
	if err != nil {
		return "", "", err
	}
	if addr != socket {
		u.Host, u.RawQuery = addr, "sslmode=disable"
	}
	return u.String(), "", nil
}
