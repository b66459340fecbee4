package pg

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// presenceClass is the first half of the advisory locks of presences; arbitrary,
// and never to be changed.
const presenceClass = 0x7072_6573

// presenceRetry is the wait between two tries to connect.
const presenceRetry = 100 * time.Millisecond

// Presence is a process's sign of life: an advisory lock that a connection of its
// own holds. When the process dies, however it dies, its connections close with it
// and the lock is free in that moment, long before any lease has run out.
//
// It is a hint and no proof. A process whose connection was cut is absent for as
// long as it takes to connect again; one whose host vanished is present until the
// server's keepalive gives up; behind a pooler that hands a connection from one
// client to the next, presence means nothing. So whoever finds a process absent
// takes over only what is fenced, and only from one that has missed a beat as well.
type Presence struct {
	db   *DB
	name string
	log  *slog.Logger

	mu    sync.Mutex // guards since
	since time.Time  // when the lock was taken; zero while it is not held
}

// NewPresence returns the presence of a process under a name that no other has.
func NewPresence(db *DB, name string, log *slog.Logger) *Presence {
	return &Presence{db: db, name: name, log: log}
}

// Run holds the presence until ctx is done, connecting again whenever it has to,
// and returns nil.
func (p *Presence) Run(ctx context.Context) error {
	for lost := false; ctx.Err() == nil; {
		err := p.hold(ctx)
		if ctx.Err() != nil {
			break
		}
		if !lost { // once for each time that Postgres is away
			p.log.WarnContext(ctx, "presence lost, connecting again", "error", err)
		}
		lost = p.markAbsent().IsZero()
		select {
		case <-ctx.Done():
		case <-time.After(presenceRetry):
		}
	}
	return nil
}

// Steady returns for how long the presence has been held without a break; 0 when
// it is not held. Who has not been steady for a while has no right to find others
// absent: Postgres may just have come back, and they are on their way.
func (p *Presence) Steady() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return 0
	}
	return time.Since(p.since)
}

// markAbsent returns since when the presence had been held.
func (p *Presence) markAbsent() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.since
	p.since = time.Time{}
	return since
}

// hold takes the lock and returns when the connection is lost.
func (p *Presence) hold(ctx context.Context) error {
	// Not of the pool: the connection is held for as long as the process lives.
	conn, err := pgx.ConnectConfig(ctx, p.db.pool.Config().ConnConfig)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(clean) // the server lets go of the lock either way
	}()
	// Shared, so that two names of one hash do not wait for each other.
	if _, err := conn.Exec(ctx, "select pg_advisory_lock_shared($1, hashtext($2))", int32(presenceClass), p.name); err != nil {
		return fmt.Errorf("take the lock: %w", err)
	}
	p.mu.Lock()
	p.since = time.Now()
	p.mu.Unlock()
	// Nothing is ever notified: this reads until the connection breaks.
	_, err = conn.WaitForNotification(ctx)
	return err
}

// Absent returns those of names whose presence nobody holds.
func Absent(ctx context.Context, tx pgx.Tx, names []string) ([]string, error) {
	rows, err := tx.Query(ctx, `
		select name from unnest($2::text[]) as name
		where (hashtext(name)::bigint & x'ffffffff'::bigint) not in (
			select objid::bigint from pg_locks
			where locktype = 'advisory' and objsubid = 2 and granted and classid = $1::bigint::oid
				and database = (select oid from pg_database where datname = current_database()))`, int64(presenceClass), names)
	if err != nil {
		return nil, fmt.Errorf("look who is absent: %w", err)
	}
	absent, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look who is absent: %w", err)
	}
	return absent, nil
}
