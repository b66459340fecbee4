package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// awaitPause is the time between two attempts of Await.
const awaitPause = 500 * time.Millisecond

// Await waits until the server of an administrator's URL accepts connections, for at most
// limit. It waits only while the server may be starting: nobody listens at its address, its name
// is not known yet, or it says that it starts or is a standby. Any other refusal, such as a wrong
// password, is returned at once.
func Await(ctx context.Context, adminURL string, limit time.Duration, log *slog.Logger) error {
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return err
	}
	for begun := time.Now(); ; {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			return conn.Close(ctx)
		}
		waited := time.Since(begun)
		starts := mayBeStarting(err)
		err = unreachable(&cfg.Config, err)
		switch {
		case !starts || ctx.Err() != nil || limit <= 0:
			return err
		case waited >= limit:
			return fmt.Errorf("waited %s: %w", waited.Round(time.Second), err)
		case waited < awaitPause:
			log.WarnContext(ctx, "waiting for PostgreSQL", "limit", limit, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(awaitPause, limit-waited)):
		}
	}
}

// mayBeStarting reports whether a failed connection may succeed without anybody's doing.
func mayBeStarting(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return isUnavailable(e)
	}
	_, dns := errors.AsType[*net.DNSError](err)
	return dns || isNetwork(err) || errors.Is(err, pgconn.ErrStandbyConnection)
}
