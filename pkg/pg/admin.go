package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server describes a PostgreSQL server.
type Server struct {
	Found       string        // its version and address, for people
	Skew        time.Duration // how far its clock is ahead of ours
	Connections int           // how many it admits from users other than superusers
}

// CheckAdmin describes the server of an administrator's URL. It returns an error if Migrate
// could not work with that server. It changes nothing.
func CheckAdmin(ctx context.Context, adminURL string) (Server, error) {
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return Server{}, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return Server{}, unreachable(&cfg.Config, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var s Server
	var version int
	var may bool
	var now time.Time
	begun := time.Now()
	// reserved_connections exists since version 16.
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000, clock_timestamp(),
		(rolsuper OR rolcreaterole) AND has_database_privilege(current_database(), 'CREATE'),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true), '0')::int
		FROM pg_roles WHERE rolname = current_user`).Scan(&version, &now, &may, &s.Connections)
	switch {
	case err != nil:
		return Server{}, fmt.Errorf("ask the server: %w", err)
	case version < oldest:
		return Server{}, fmt.Errorf("the server is PostgreSQL %d; version %d or newer is needed", version, oldest)
	case !may:
		return Server{}, errors.New("the user may not administer the database: it needs CREATEROLE, and CREATE on the database")
	}
	s.Skew = now.Sub(begun.Add(time.Since(begun) / 2))
	s.Found = fmt.Sprintf("PostgreSQL %d at %s", version, cfg.Host)
	return s, nil
}

// OpenAdmin opens a session of an administrator that sees the rows of all tenants, and during
// which Migrate waits. Values are written in the same form whatever the server's settings are,
// and no statement is limited in time. The caller closes it.
func OpenAdmin(ctx context.Context, adminURL string) (*pgx.Conn, error) {
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, unreachable(&cfg.Config, err)
	}
	_, err = conn.Exec(ctx, `SELECT set_config(name, value, false) FROM (VALUES
		('signalbox.system', 'on'), ('search_path', ''), ('client_encoding', 'UTF8'), ('timezone', 'UTC'), ('datestyle', 'ISO'),
		('intervalstyle', 'postgres'), ('extra_float_digits', '3'), ('bytea_output', 'hex'), ('synchronize_seqscans', 'off'),
		('statement_timeout', '0'), ('idle_in_transaction_session_timeout', '0')) AS s (name, value)`)
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", int64(migrationLock))
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the first error counts
		return nil, fmt.Errorf("prepare the session: %w", err)
	}
	return conn, nil
}
