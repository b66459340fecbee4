package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fair"
)

// Limits of every connection. A URL may override those of the server
// (…?statement_timeout=5s).
const (
	connectTimeout     = 5 * time.Second
	acquireTimeout     = 5 * time.Second  // waiting for a free connection of the pool
	pingTimeout        = 2 * time.Second  // of a connection that has not been used for a while
	transactionTimeout = 15 * time.Second // begin to commit
	statementTimeout   = 30 * time.Second // one statement, in the server
	lockTimeout        = 10 * time.Second // waiting for one lock, in the server
	idleTimeout        = 10 * time.Second // an idle transaction, in the server: its process is suspended or cut off
	rollbackTimeout    = 5 * time.Second
	defaultMaxConns    = 10
)

// Config configures a DB.
type Config struct {
	URL         conf.Secret     // postgres://user:password@host:5432/database
	Role        string          // the service's role; the URL's user is the role or a member of it
	Schema      string          // becomes the search_path
	MaxConns    int32           // 0 means 10
	Application string          // application_name; empty means Role
	Tracer      pgx.QueryTracer // may be nil; span names must not contain the SQL, because that of begin has ids
}

// DB is a pool of connections for transactions with claims. It is safe for concurrent use.
type DB struct {
	pool     *pgxpool.Pool
	slots    *fair.Semaphore[string] // its connections, by workspace
	attempts int                     // connections that a begin tries if they are dead
}

// Open checks cfg and returns a DB without connecting: a service starts while Postgres is
// down, and Ping reports it. The caller closes the DB.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	for _, v := range [...]struct{ what, name string }{{"role", cfg.Role}, {"schema", cfg.Schema}} {
		if err := checkName(v.what, v.name); err != nil {
			return nil, err
		}
	}
	if cfg.URL == "" {
		return nil, errors.New("the database URL (DATABASE_URL) is empty: want postgres://user:password@host:5432/database")
	}
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		// Without the cause, which quotes the URL: the redaction of pgx is a guess.
		return nil, errors.New("the database URL (DATABASE_URL) does not parse: want postgres://user:password@host:5432/database, with special characters of the password percent-encoded")
	}
	pc.MaxConns = cmp.Or(cfg.MaxConns, defaultMaxConns)
	pc.MinConns, pc.MinIdleConns = 0, 0
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnLifetimeJitter = 10 * time.Minute
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.PingTimeout = pingTimeout
	pc.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		registerUUIDs(c.TypeMap())
		return refuseBypass(ctx, c)
	}
	cc := pc.ConnConfig
	cc.Tracer = cfg.Tracer
	cc.ConnectTimeout = connectTimeout
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	cc.DialFunc = dialer.DialContext
	params := cc.RuntimeParams
	params["role"] = cfg.Role
	params["search_path"] = cfg.Schema
	// Nearly all prepared statements look up a key. By default Postgres plans many of them
	// for each execution, which takes several times as long as executing them.
	params["plan_cache_mode"] = "force_generic_plan"
	params["application_name"] = cmp.Or(cfg.Application, cfg.Role)
	for name, d := range map[string]time.Duration{
		"statement_timeout":                   statementTimeout,
		"lock_timeout":                        lockTimeout,
		"idle_in_transaction_session_timeout": idleTimeout,
	} {
		if params[name] == "" {
			params[name] = strconv.FormatInt(d.Milliseconds(), 10)
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	return &DB{pool: pool, slots: fair.New[string](fair.Limits{Slots: int(pc.MaxConns)}), attempts: int(pc.MaxConns) + 1}, nil
}

// refuseBypass refuses a connection that bypasses row-level security: a mistake in the
// configuration must not open tenants to each other.
func refuseBypass(ctx context.Context, c *pgx.Conn) error {
	var role string
	var bypass bool
	err := c.QueryRow(ctx, "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").Scan(&role, &bypass)
	if err != nil {
		return fmt.Errorf("look up the connection's role: %w", err)
	}
	if bypass {
		return fmt.Errorf("role %q ignores row-level security: give the service a role without SUPERUSER and BYPASSRLS", role)
	}
	return nil
}

// Ping checks that the database replies within 5 s.
func (db *DB) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	return classify(ctx, "ping", db.pool.Ping(limited))
}

// Close waits for transactions in flight and closes all connections.
func (db *DB) Close() { db.pool.Close() }

// checkName allows names that need no quotes, in SQL or elsewhere.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= 63
	for i, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9')
	}
	if !ok {
		return fmt.Errorf("%s %q: want up to 63 lower-case letters, digits and underscores", what, name)
	}
	return nil
}
