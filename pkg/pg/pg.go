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

// Limits of every connection. A URL may set its own (…?statement_timeout=5s);
// the transaction's limit is fixed.
const (
	connectTimeout     = 5 * time.Second
	acquireTimeout     = 5 * time.Second  // waiting for a free connection of the pool
	pingTimeout        = 2 * time.Second  // of a connection that has not been used for a while
	transactionTimeout = 15 * time.Second // begin to commit, also when the caller set no deadline
	statementTimeout   = 30 * time.Second // one statement, in the server
	lockTimeout        = 10 * time.Second // waiting for one lock, in the server
	idleTimeout        = 10 * time.Second // a transaction that does nothing, in the server: its process is stopped, or cut off
	rollbackTimeout    = 5 * time.Second
	defaultMaxConns    = 10
)

// Config says where the database is and as whom to use it.
type Config struct {
	URL         conf.Secret     // postgres://user:password@host:5432/database
	Role        string          // the service's role; the URL's user is it or a member of it
	Schema      string          // becomes the search_path
	MaxConns    int32           // 10 when 0
	Application string          // application_name; Role when empty
	Tracer      pgx.QueryTracer // may be nil; it should not name spans after the SQL, in which begin has ids
}

// DB is a pool of connections that hands out transactions with claims. It is
// safe for concurrent use.
type DB struct {
	pool     *pgxpool.Pool
	turns    *fair.Semaphore[string] // its connections, by workspace
	attempts int                     // how many dead connections a begin skips
}

// Open checks cfg and returns a DB without connecting: a service starts while
// Postgres is away and says so through Ping. The caller closes it.
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
		// The cause is not shown: it quotes the URL, and pgx redacts by guessing.
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
		return refusePower(ctx, c)
	}
	cc := pc.ConnConfig
	cc.Tracer = cfg.Tracer
	cc.ConnectTimeout = connectTimeout
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	cc.DialFunc = dialer.DialContext
	params := cc.RuntimeParams
	params["role"] = cfg.Role
	params["search_path"] = cfg.Schema
	// Statements are prepared once for each connection, and nearly all of them go by a
	// key. Left alone, Postgres plans many of them anew each time, which takes several
	// times as long as running them.
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
	return &DB{pool: pool, turns: fair.New[string](fair.Limits{Slots: int(pc.MaxConns)}), attempts: int(pc.MaxConns) + 1}, nil
}

// refusePower closes a connection to which policies would not apply: a slip in
// the configuration must not open all tenants to each other.
func refusePower(ctx context.Context, c *pgx.Conn) error {
	var role string
	var power bool
	err := c.QueryRow(ctx, "select rolname, rolsuper or rolbypassrls from pg_roles where rolname = current_user").Scan(&role, &power)
	if err != nil {
		return fmt.Errorf("look up the own role: %w", err)
	}
	if power {
		return fmt.Errorf("role %q ignores row-level security: give the service a role without SUPERUSER and BYPASSRLS", role)
	}
	return nil
}

// Ping reports whether a connection can be had and answers, within 5 s.
func (db *DB) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	return classify(ctx, "ping", db.pool.Ping(limited))
}

// Close waits for transactions in flight and closes all connections.
func (db *DB) Close() { db.pool.Close() }

// checkName allows what needs no quotes anywhere: in SQL, in a search_path and
// in the name of goose's table.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= 63
	for i, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9')
	}
	if !ok {
		return fmt.Errorf("%s %q: want a lower-case name of letters, digits and underscores, 63 at most", what, name)
	}
	return nil
}
