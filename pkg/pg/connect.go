package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/conf"
)

// errPooler is the error of a connection that needs a session of its own and does not get one.
var errPooler = errors.New("the connection goes through a pooler, which shares sessions: use the address of the PostgreSQL server itself")

// staleMode marks a connection, in its CustomData, that was opened before it was known that
// the database is behind a pooler: it would use prepared statements.
const staleMode = "signalbox.dev/pkg/pg stale mode"

// setting is a setting of every session of a service. Its value needs no quotes.
type setting struct{ name, value string }

// settings returns the settings of a service's sessions. Behind a pooler a session cannot have
// any of its own, so Migrate stores them with the role as well.
func settings(schema string) []setting {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return []setting{
		{"search_path", schema},
		// Nearly all prepared statements look up a key. By default Postgres plans many of them
		// for each execution, which takes several times as long as executing them.
		{"plan_cache_mode", "force_generic_plan"},
		{"statement_timeout", ms(statementTimeout)},
		{"lock_timeout", ms(lockTimeout)},
		{"idle_in_transaction_session_timeout", ms(idleTimeout)},
	}
}

// parseURL parses a database URL and reads the files that it names: certificates, and a file
// with passwords. The error names the variable, and does not contain the URL.
func parseURL(variable string, secret conf.Secret) (*pgxpool.Config, error) {
	if secret == "" {
		return nil, fmt.Errorf("the database URL (%s) is empty: want postgres://user:password@host:5432/database", variable)
	}
	cfg, err := pgxpool.ParseConfig(secret.Reveal())
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("the database URL (%s) names a file that cannot be read: %w", variable, file)
	}
	if err != nil {
		// Without the cause, which quotes the URL: the redaction of pgx is a guess.
		return nil, fmt.Errorf("the database URL (%s) does not parse: want postgres://user:password@host:5432/database, with special characters of the password percent-encoded", variable)
	}
	cc := cfg.ConnConfig
	cc.ConnectTimeout = min(connectTimeout, cc.ConnectTimeout)
	for _, f := range cc.Fallbacks {
		if f.Host != cc.Host || f.Port != cc.Port {
			cc.ConnectTimeout = min(fallbackTimeout, cc.ConnectTimeout)
		}
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	cc.DialFunc = dialer.DialContext
	if cc.ValidateConnect == nil { // no target_session_attrs: we are of no use on a standby
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	closes := cc.OnPgError
	cc.OnPgError = func(c *pgconn.PgConn, e *pgconn.PgError) bool {
		// Read-only: the server is no longer the primary. The next connection looks for it.
		return closes(c, e) && e.Code != "25006"
	}
	return cfg, nil
}

// CheckTLS returns an error unless connections are encrypted to a server that has proved its name,
// whichever of the URLs' servers it is, or are local.
func (c Config) CheckTLS() error {
	for _, u := range []struct {
		variable string
		url      conf.Secret
	}{{"DATABASE_URL", c.URL}, {"DATABASE_DIRECT_URL", c.DirectURL}} {
		if u.url == "" {
			continue
		}
		cfg, err := parseURL(u.variable, u.url)
		if err != nil {
			return err
		}
		cc := cfg.ConnConfig
		attempts := append([]*pgconn.FallbackConfig{{Host: cc.Host, Port: cc.Port, TLSConfig: cc.TLSConfig}}, cc.Fallbacks...)
		for _, a := range attempts {
			if network, _ := pgconn.NetworkAddress(a.Host, a.Port); network == "unix" {
				continue
			}
			if a.TLSConfig == nil || a.TLSConfig.InsecureSkipVerify {
				return fmt.Errorf("%s is not encrypted and checked: add sslmode=verify-full, and sslrootcert for an authority of your own", u.variable)
			}
		}
	}
	return nil
}

// requireSession makes connections fail that go through a pooler.
func requireSession(cc *pgx.ConnConfig) {
	validate := cc.ValidateConnect
	cc.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		pooled, err := isPooled(ctx, c)
		if err == nil && pooled {
			err = errPooler
		}
		if err != nil {
			return err
		}
		return validate(ctx, c)
	}
}

// isPooled reports whether a connection goes through a pooler: the process id that was
// announced to us is then not the one of the server's process.
func isPooled(ctx context.Context, c *pgconn.PgConn) (bool, error) {
	results, err := c.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return false, fmt.Errorf("ask for the server's process: %w", err)
	}
	return string(results[0].Rows[0][0]) != strconv.FormatUint(uint64(c.PID()), 10), nil
}

// connConfig returns the configuration of a new connection to the server, or to the pooler in
// front of it. It reads password files and certificates again, which may have been replaced.
func (db *DB) connConfig() (*pgx.ConnConfig, error) {
	cfg, err := parseURL("DATABASE_URL", db.cfg.URL)
	if err != nil {
		return nil, unavailable(err)
	}
	db.customize(cfg.ConnConfig)
	// Without prepared statements, of which poolers lose track, unless the URL asks for them.
	if db.pooled.Load() && !db.choosesMode() {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	return cfg.ConnConfig, nil
}

// connectDirectly opens a connection of its own, with a session of its own.
func (db *DB) connectDirectly(ctx context.Context) (*pgx.Conn, error) {
	variable, url := "DATABASE_DIRECT_URL", db.cfg.DirectURL
	if url == "" {
		variable, url = "DATABASE_URL", db.cfg.URL
	}
	cfg, err := parseURL(variable, url)
	if err != nil {
		return nil, err
	}
	db.customize(cfg.ConnConfig)
	requireSession(cfg.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, unreachable(&cfg.ConnConfig.Config, err))
	}
	return conn, nil
}

func (db *DB) customize(cc *pgx.ConnConfig) {
	cc.Tracer = db.cfg.Tracer
	cc.RuntimeParams["application_name"] = cmp.Or(db.cfg.Application, db.cfg.Role)
}

// choosesMode reports whether the URL says how statements are sent.
func (db *DB) choosesMode() bool {
	return strings.Contains(db.cfg.URL.Reveal(), "default_query_exec_mode=")
}

// prepare makes a new connection ready for the pool: it acts as the service's role, with the
// settings of its sessions.
func (db *DB) prepare(ctx context.Context, c *pgx.Conn) error {
	registerUUIDs(c.TypeMap())
	pooled, err := isPooled(ctx, c.PgConn())
	if err != nil {
		return err
	}
	if !pooled {
		if _, err := c.Exec(ctx, db.setUp(c.Config().RuntimeParams)); err != nil {
			return unavailable(fmt.Errorf("act as role %s: %w", db.cfg.Role, err))
		}
	}
	var role, path string
	var bypass bool
	err = c.QueryRow(ctx, "SELECT rolname, rolsuper OR rolbypassrls, current_setting('search_path') FROM pg_roles WHERE rolname = current_user",
		pgx.QueryExecModeExec).Scan(&role, &bypass, &path)
	switch {
	case err != nil:
		return fmt.Errorf("look up the connection's role: %w", err)
	case bypass: // a mistake in the configuration must not open tenants to each other
		return fmt.Errorf("role %q ignores row-level security: give the service a role without SUPERUSER and BYPASSRLS", role)
	case !pooled:
		return nil
	case role != db.cfg.Role:
		return fmt.Errorf("DATABASE_URL goes through a pooler, where its user must be %q and not %q", db.cfg.Role, role)
	case path != db.cfg.Schema:
		return unavailable(fmt.Errorf("behind a pooler, role %q needs search_path = %s, and has %s: run `signalbox migrate` of this version, then RECONNECT in the pooler's console", role, db.cfg.Schema, path))
	case db.needsSession.Load() && db.cfg.DirectURL == "":
		return errors.New("DATABASE_URL goes through a pooler, and this service also needs a session of its own: set DATABASE_DIRECT_URL to the address of the PostgreSQL server itself")
	}
	if db.pooled.Store(true); c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && !db.choosesMode() {
		c.PgConn().CustomData()[staleMode] = true
	}
	return nil
}

// setUp returns the statement that turns the login into the service's role and makes the
// settings of its sessions, except for those that its URL has made.
func (db *DB) setUp(made map[string]string) string {
	all := []string{"set_config('role', '" + db.cfg.Role + "', false)"}
	for _, s := range settings(db.cfg.Schema) {
		if made[s.name] == "" {
			all = append(all, "set_config('"+s.name+"', '"+s.value+"', false)")
		}
	}
	return "SELECT " + strings.Join(all, ", ")
}
