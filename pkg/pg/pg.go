package pg

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
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
	fallbackTimeout    = 2 * time.Second  // of each of several hosts
	acquireTimeout     = 5 * time.Second  // waiting for a free connection of the pool
	pingTimeout        = 2 * time.Second  // of a connection that has not been used for a while
	transactionTimeout = 15 * time.Second // begin to commit
	statementTimeout   = 30 * time.Second // one statement, in the server
	lockTimeout        = 10 * time.Second // waiting for one lock, in the server
	idleTimeout        = 10 * time.Second // an idle transaction, in the server: its process is suspended or cut off
	rollbackTimeout    = 5 * time.Second
	defaultMaxConns    = 10
	maxConns           = 10_000
)

// Config configures a DB.
type Config struct {
	URL         conf.Secret     // postgres://user:password@host:5432/database
	DirectURL   conf.Secret     // for a Presence, if URL goes through a connection pooler
	Role        string          // the service's role; the URL's user is the role or a member of it
	Schema      string          // becomes the search_path
	MaxConns    int32           // 0 means 10
	Application string          // application_name; empty means Role
	Tracer      pgx.QueryTracer // may be nil; span names must not contain the SQL, because that of begin has ids
}

// DB is a pool of connections for transactions with claims. It is safe for concurrent use.
type DB struct {
	cfg      Config
	pool     *pgxpool.Pool
	slots    *fair.Semaphore[string] // its connections, by workspace
	attempts int                     // connections that a begin tries if they are dead

	waits, waited atomic.Int64 // for slots: how often, and nanoseconds, also in vain

	pooled       atomic.Bool // connections go through a pooler
	needsSession atomic.Bool // there is a Presence
}

// Open checks cfg and returns a DB without connecting: a service starts while Postgres is
// down, and Ping reports it. The caller closes the DB.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	for _, v := range [...]struct{ what, name string }{{"role", cfg.Role}, {"schema", cfg.Schema}} {
		if err := checkName(v.what, v.name); err != nil {
			return nil, err
		}
	}
	if cfg.MaxConns < 0 || cfg.MaxConns > maxConns {
		return nil, fmt.Errorf("the maximum number of connections is %d: want 1 to %d", cfg.MaxConns, maxConns)
	}
	pc, err := parseURL("DATABASE_URL", cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.DirectURL != "" {
		if _, err := parseURL("DATABASE_DIRECT_URL", cfg.DirectURL); err != nil {
			return nil, err
		}
	}
	pc.MaxConns = cmp.Or(cfg.MaxConns, defaultMaxConns)
	pc.MinConns, pc.MinIdleConns = 0, 0
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnLifetimeJitter = 10 * time.Minute
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.PingTimeout = pingTimeout
	db := &DB{cfg: cfg, slots: fair.New[string](fair.Limits{Slots: int(pc.MaxConns)}), attempts: int(pc.MaxConns) + 1}
	pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		fresh, err := db.connConfig()
		if err == nil {
			*cc = *fresh
		}
		return err
	}
	pc.AfterConnect = db.prepare
	pc.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) {
		_, stale := c.PgConn().CustomData()[staleMode]
		return !stale, nil
	}
	if db.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	return db, nil
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
