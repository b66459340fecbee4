package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// CheckAdmin describes the server of an administrator's URL and returns how far its clock is
// ahead of ours. It returns an error if Migrate could not work with that server. It changes
// nothing.
func CheckAdmin(ctx context.Context, adminURL string) (found string, skew time.Duration, err error) {
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return "", 0, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", 0, unreachable(&cfg.Config, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var version int
	var may bool
	var now time.Time
	begun := time.Now()
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000, clock_timestamp(),
		(rolsuper OR rolcreaterole) AND has_database_privilege(current_database(), 'CREATE')
		FROM pg_roles WHERE rolname = current_user`).Scan(&version, &now, &may)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("ask the server: %w", err)
	case version < oldest:
		return "", 0, fmt.Errorf("the server is PostgreSQL %d; version %d or newer is needed", version, oldest)
	case !may:
		return "", 0, errors.New("the user may not administer the database: it needs CREATEROLE, and CREATE on the database")
	}
	middle := begun.Add(time.Since(begun) / 2)
	return fmt.Sprintf("PostgreSQL %d at %s", version, cfg.Host), now.Sub(middle), nil
}
