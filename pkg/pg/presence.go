package pg

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// presenceClass is the first half of the keys of presence locks. The number is arbitrary and
// must never change.
const presenceClass = 0x7072_6573

// presenceRetry is the pause between attempts to connect.
const presenceRetry = 100 * time.Millisecond

// Presence shows that a process is alive: an advisory lock on a connection of its own. When
// the process dies, its connection closes and the lock is free at once, long before a lease
// expires.
//
// It is a hint and not a proof. A process that lost its connection is absent until it has
// reconnected; one whose host vanished is present until the server's keepalive gives up. Others
// therefore take over from an absent process only what is fenced, and only if it has missed a
// heartbeat as well.
//
// A connection pooler would share the session that holds the lock, so the connection goes to
// Config.DirectURL.
type Presence struct {
	db   *DB
	name string
	log  *slog.Logger

	mu    sync.Mutex // guards since
	since time.Time  // when the lock was taken; zero while it is not held
}

// NewPresence returns the presence of a process under a unique name. From then on db refuses
// to work through a connection pooler unless it has a DirectURL.
func NewPresence(db *DB, name string, log *slog.Logger) *Presence {
	db.needsSession.Store(true)
	return &Presence{db: db, name: name, log: log}
}

// Run holds the lock until ctx is done, reconnecting if necessary, and returns nil.
func (p *Presence) Run(ctx context.Context) error {
	for lost := false; ctx.Err() == nil; {
		err := p.hold(ctx)
		if ctx.Err() != nil {
			break
		}
		if !lost { // once per outage
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

// Steady returns how long the lock has been held without a break, 0 if it is not held. A
// process that has not been steady for a while must not consider others absent: Postgres may
// just have restarted, and they may still be reconnecting.
func (p *Presence) Steady() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return 0
	}
	return time.Since(p.since)
}

// markAbsent notes that the lock is lost, and returns since when it was held.
func (p *Presence) markAbsent() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.since
	p.since = time.Time{}
	return since
}

// hold takes the lock and returns when the connection is lost.
func (p *Presence) hold(ctx context.Context) error {
	// Not from the pool: the connection is held until the process ends.
	conn, err := p.db.connectDirectly(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(clean) // the server frees the lock either way
	}()
	// Shared, so that two names with the same hash do not wait for each other.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1, hashtext($2))", int32(presenceClass), p.name); err != nil {
		return fmt.Errorf("take the lock: %w", err)
	}
	p.mu.Lock()
	p.since = time.Now()
	p.mu.Unlock()
	// No notification ever comes: this returns when the connection breaks.
	_, err = conn.WaitForNotification(ctx)
	return err
}

// Absent returns the names of processes that do not hold their presence.
func Absent(ctx context.Context, tx pgx.Tx, names []string) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT name FROM unnest(@names::text[]) AS name
		WHERE (hashtext(name)::bigint & x'ffffffff'::bigint) NOT IN (
			SELECT objid::bigint FROM pg_locks
			WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = @class::bigint::oid
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`,
		Args{"class": int64(presenceClass), "names": names})
	if err != nil {
		return nil, fmt.Errorf("find absent processes: %w", err)
	}
	absent, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find absent processes: %w", err)
	}
	return absent, nil
}
