package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/id"
)

// claims decide what a transaction may see. The zero value is refused.
type claims struct {
	workspace, member, system string
	snapshot                  bool // one read-only snapshot for all statements
}

func ofWorkspace(ws id.Workspace) (c claims) {
	if !id.IsZero(ws) {
		c.workspace = ws.String()
	}
	return c
}

func ofMember(m id.Member) (c claims) {
	if !id.IsZero(m) {
		c.member = m.String()
	}
	return c
}

// begin returns the statements that open a transaction with these claims. They are sent as
// one simple query in one round trip. The values are UUIDs that we print or "on", and need no
// quoting. All three are always set, so that they override any setting of the session.
func (c claims) begin() string {
	mode := "BEGIN"
	if c.snapshot {
		mode = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	}
	return mode + "; SELECT set_config('signalbox.workspace', '" + c.workspace +
		"', true), set_config('signalbox.member', '" + c.member +
		"', true), set_config('signalbox.system', '" + c.system + "', true)"
}

// InWorkspace runs fn in a transaction that sees the rows of one workspace. It commits if fn
// returns nil, and rolls back if fn fails or panics. It wraps the error of fn, and takes 15 s
// at most.
func (db *DB) InWorkspace(ctx context.Context, ws id.Workspace, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return db.transact(ctx, ofWorkspace(ws), fn)
}

// Snapshot is InWorkspace for reading: all of fn's statements see one snapshot.
func (db *DB) Snapshot(ctx context.Context, ws id.Workspace, fn func(ctx context.Context, tx pgx.Tx) error) error {
	c := ofWorkspace(ws)
	c.snapshot = true
	return db.transact(ctx, c, fn)
}

// AsMember is InWorkspace for a person's memberships in all workspaces.
func (db *DB) AsMember(ctx context.Context, m id.Member, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return db.transact(ctx, ofMember(m), fn)
}

// AsSystem is InWorkspace for all workspaces. It is for work that crosses them: sweepers, the
// outbox, the lookup of a key's owner. A comment at each use says why it is needed.
func (db *DB) AsSystem(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return db.transact(ctx, claims{system: "on"}, fn)
}

func (db *DB) transact(ctx context.Context, c claims, fn func(context.Context, pgx.Tx) error) error {
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	release, err := db.acquireSlot(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer release()
	tx, err := db.begin(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	// Deferred, in case fn panics or calls runtime.Goexit, as t.FailNow does. With a context
	// of its own: the end of the caller's may have ended the transaction.
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(clean) // does nothing after Commit; the pool closes a connection that cannot roll back
	}()
	if err := fn(limited, tx); err != nil {
		return classifyIn(ctx, tx, err)
	}
	if err := tx.Commit(limited); err != nil {
		return classify(ctx, "commit", err)
	}
	return nil
}

// begin opens a transaction. After a restart of Postgres the pool has dead connections, each
// of which costs one attempt. Repeating is safe, because only the begin was sent.
func (db *DB) begin(ctx context.Context, c claims) (pgx.Tx, error) {
	options := pgx.TxOptions{BeginQuery: c.begin()}
	for attempt := 1; ; attempt++ {
		tx, err := db.beginOnce(ctx, options)
		if err == nil || attempt >= db.attempts || ctx.Err() != nil || !isStale(err) {
			return tx, err
		}
	}
}

func (db *DB) beginOnce(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errBusy)
	defer cancel()
	tx, err := db.pool.BeginTx(limited, options)
	if err != nil {
		err = db.explainBusy(limited, err)
	}
	return tx, err
}

// acquireSlot waits for a connection to be available to the claims' workspace: the pool
// itself is first come, first served, so that one workspace could flood it. Claims without a
// workspace (sweepers, the outbox) count as one more.
func (db *DB) acquireSlot(ctx context.Context, c claims) (release func(), err error) {
	if c.workspace == "" && c.member == "" && c.system == "" {
		return nil, errors.New("no workspace or member given")
	}
	release = func() { db.slots.Release(c.workspace) }
	if db.slots.TryAcquire(c.workspace) {
		return release, nil
	}
	start := time.Now()
	defer func() {
		db.waits.Add(1)
		db.waited.Add(int64(time.Since(start)))
	}()
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errBusy)
	defer cancel()
	if err := db.slots.Acquire(limited, c.workspace); err != nil {
		return nil, db.explainBusy(limited, err)
	}
	return release, nil
}

// explainBusy adds to the error of a wait that all connections were in use for too long.
func (db *DB) explainBusy(limited context.Context, err error) error {
	if !errors.Is(context.Cause(limited), errBusy) {
		return err
	}
	s := db.pool.Stat()
	return fmt.Errorf("%w (%d of %d in use): %w", errBusy, s.AcquiredConns(), s.MaxConns(), err)
}

// isStale reports whether an established connection was lost, as opposed to a connection
// that could not be opened.
func isStale(err error) bool {
	if errors.Is(err, errBusy) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "57P01" || e.Code == "57P02" || // terminated by an administrator, or after a crash
			strings.HasPrefix(e.Code, "08") // a pooler that stops, or has lost its server
	}
	return isNetwork(err)
}

// ReadInWorkspace sends a batch of read-only statements in one round trip. They see the rows
// of one workspace, each in a snapshot of its own, and pass their results to the functions
// that were queued with them. Dead connections are retried.
func (db *DB) ReadInWorkspace(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
	return db.batch(ctx, ofWorkspace(ws), b, db.attempts)
}

// ReadAsMember is ReadInWorkspace for a person's memberships in all workspaces.
func (db *DB) ReadAsMember(ctx context.Context, m id.Member, b *pgx.Batch) error {
	return db.batch(ctx, ofMember(m), b, db.attempts)
}

// ReadAsSystem is ReadInWorkspace for all workspaces. A comment at each use says why it is
// needed.
func (db *DB) ReadAsSystem(ctx context.Context, b *pgx.Batch) error {
	return db.batch(ctx, claims{system: "on"}, b, db.attempts)
}

// WriteInWorkspace sends a batch of statements as one transaction in one round trip. A
// statement sees the effects of earlier ones. If one fails, none takes effect; after an error
// of the connection it is unknown whether they did.
func (db *DB) WriteInWorkspace(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
	return db.batch(ctx, ofWorkspace(ws), b, 1)
}

// WriteAsSystem is WriteInWorkspace for all workspaces. A comment at each use says why it is
// needed.
func (db *DB) WriteAsSystem(ctx context.Context, b *pgx.Batch) error {
	return db.batch(ctx, claims{system: "on"}, b, 1)
}

// ChangeInWorkspace is InWorkspace in two round trips: one opens the transaction and sends
// read, the other sends the statements that change queues, and commits. change may use what
// read's functions have read. If it fails or queues nothing, nothing has happened. An error
// of a function that reads the results of a change comes after the commit.
func (db *DB) ChangeInWorkspace(ctx context.Context, ws id.Workspace, read *pgx.Batch, change func(b *pgx.Batch) error) error {
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	c := ofWorkspace(ws)
	release, err := db.acquireSlot(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer release()
	conn, err := db.beginWith(limited, c, read)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer conn.Release() // closes the connection if it is still in a transaction
	b := &pgx.Batch{}
	if err := change(b); err != nil || b.Len() == 0 {
		db.rollback(ctx, conn)
		return err
	}
	b.Queue("COMMIT")
	if err := conn.SendBatch(limited, b).Close(); err != nil {
		db.rollback(ctx, conn)
		return classify(ctx, "change and commit", err)
	}
	return nil
}

// beginWith opens a transaction and sends a read-only batch, in one round trip. Dead
// connections are retried.
func (db *DB) beginWith(ctx context.Context, c claims, b *pgx.Batch) (*pgxpool.Conn, error) {
	for attempt := 1; ; attempt++ {
		conn, err := db.acquire(ctx)
		if err != nil {
			return nil, err
		}
		if err = conn.SendBatch(ctx, withClaims(c, b, "BEGIN")).Close(); err == nil {
			return conn, nil
		}
		db.rollback(ctx, conn)
		conn.Release()
		if attempt >= db.attempts || ctx.Err() != nil || !isStale(err) {
			return nil, err
		}
	}
}

// rollback rolls back a connection's open transaction. The pool closes a connection that
// cannot.
func (db *DB) rollback(ctx context.Context, conn *pgxpool.Conn) {
	if c := conn.Conn(); c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	// With a context of its own: the end of the caller's may have ended the transaction.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, _ = conn.Exec(clean, "ROLLBACK")
}

// Collect returns a function for a queued statement that scans its rows, by column name, into
// a slice.
func Collect[T any](into *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	}
}

// batch sends the claims and the statements. Postgres runs statements that are sent together
// in one transaction, so that the claims are local to them.
func (db *DB) batch(ctx context.Context, c claims, b *pgx.Batch, attempts int) error {
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	release, err := db.acquireSlot(limited, c)
	if err != nil {
		return classify(ctx, "send a batch", err)
	}
	defer release()
	for attempt := 1; ; attempt++ {
		err := db.batchOnce(limited, withClaims(c, b))
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || attempt > db.attempts:
		case pgconn.SafeToRetry(err) && isStale(err), attempt < attempts && isStale(err):
			continue
		}
		return classify(ctx, "send a batch", err)
	}
}

// withClaims returns a batch of first, the claims, and the statements of b. Each attempt
// needs a new one, because pgx stores in a queued statement what the connection knows of it.
func withClaims(c claims, b *pgx.Batch, first ...string) *pgx.Batch {
	all := &pgx.Batch{}
	for _, sql := range first {
		all.Queue(sql)
	}
	all.Queue(setClaims, c.workspace, c.member, c.system)
	for _, q := range b.QueuedQueries {
		all.QueuedQueries = append(all.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
	}
	return all
}

const setClaims = `SELECT set_config('signalbox.workspace', $1, true), set_config('signalbox.member', $2, true), set_config('signalbox.system', $3, true)`

func (db *DB) batchOnce(ctx context.Context, b *pgx.Batch) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.SendBatch(ctx, b).Close()
}

// acquire takes a connection from the pool. The caller has a slot, and releases the
// connection.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errBusy)
	defer cancel()
	conn, err := db.pool.Acquire(limited)
	if err != nil {
		err = db.explainBusy(limited, err)
	}
	return conn, err
}
