package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/id"
)

// claims is what a transaction may see. The zero value sees nothing.
type claims struct {
	workspace, member, system string
	snapshot                  bool // all statements see one moment, and none may write
}

// begin returns the statements that open a transaction with these claims. It is
// sent as one simple query, one round trip. The values are UUIDs that we print
// ourselves or "on", so there is nothing to quote. All three are always set: a
// session-wide setting that some statement left behind is covered.
func (c claims) begin() string {
	mode := "begin"
	if c.snapshot {
		mode = "begin isolation level repeatable read read only"
	}
	return mode + "; select set_config('signalbox.workspace', '" + c.workspace +
		"', true), set_config('signalbox.member', '" + c.member +
		"', true), set_config('signalbox.system', '" + c.system + "', true)"
}

// InWorkspace runs fn in a transaction that sees the rows of one workspace. It
// commits when fn returns nil and rolls back when fn fails or panics. Errors of
// fn come back in the chain. The whole takes 15 s at most.
func (db *DB) InWorkspace(ctx context.Context, ws id.Workspace, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if id.IsZero(ws) {
		return errors.New("begin a transaction: no workspace given")
	}
	return db.transact(ctx, claims{workspace: ws.String()}, fn)
}

// Snapshot is InWorkspace for reading: all of fn's statements see the rows as they
// were at one moment.
func (db *DB) Snapshot(ctx context.Context, ws id.Workspace, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if id.IsZero(ws) {
		return errors.New("begin a transaction: no workspace given")
	}
	return db.transact(ctx, claims{workspace: ws.String(), snapshot: true}, fn)
}

// AsMember runs fn like InWorkspace, in a transaction that sees what a person
// may see of all workspaces: their own memberships.
func (db *DB) AsMember(ctx context.Context, m id.Member, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if id.IsZero(m) {
		return errors.New("begin a transaction: no member given")
	}
	return db.transact(ctx, claims{member: m.String()}, fn)
}

// AsSystem runs fn like InWorkspace, in a transaction that sees all workspaces.
// It is for what crosses them by nature: sweepers, the outbox, looking up whom
// a key belongs to. Each use says in a comment why it needs this.
func (db *DB) AsSystem(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return db.transact(ctx, claims{system: "on"}, fn)
}

func (db *DB) transact(ctx context.Context, c claims, fn func(context.Context, pgx.Tx) error) error {
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	done, err := db.turn(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer done()
	tx, err := db.begin(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	// Also when fn panics or calls runtime.Goexit, as t.FailNow does. Under a
	// context of its own: the caller's may be what ended the transaction.
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(clean) // after Commit a no-op; a connection that cannot roll back is closed by the pool
	}()
	if err := fn(limited, tx); err != nil {
		return classifyIn(ctx, tx, err)
	}
	if err := tx.Commit(limited); err != nil {
		return classify(ctx, "commit", err)
	}
	return nil
}

// begin opens a transaction. After a restart of Postgres the pool holds
// connections that are dead and do not know it; each costs one attempt, and
// repeating is safe because nothing but the begin was sent.
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
		err = db.busy(limited, err)
	}
	return tx, err
}

// turn waits until the claims' workspace may have a connection of the pool; done gives it
// back. The pool alone serves first come, and whoever floods it is in front of everybody.
// What acts for no workspace (sweepers, the outbox) has a turn of its own.
func (db *DB) turn(ctx context.Context, c claims) (done func(), err error) {
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errBusy)
	defer cancel()
	if err := db.turns.Acquire(limited, c.workspace); err != nil {
		return nil, db.busy(limited, err)
	}
	return func() { db.turns.Release(c.workspace) }, nil
}

// busy adds to an error of waiting, when all connections were in use for too long, that
// they were.
func (db *DB) busy(limited context.Context, err error) error {
	if !errors.Is(context.Cause(limited), errBusy) {
		return err
	}
	s := db.pool.Stat()
	return fmt.Errorf("%w (%d of %d in use): %w", errBusy, s.AcquiredConns(), s.MaxConns(), err)
}

// isStale reports whether err says that an established connection was lost, in
// contrast to one that could not be made.
func isStale(err error) bool {
	if errors.Is(err, errBusy) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "57P01" || e.Code == "57P02" // terminated by an administrator, or by a crash
	}
	return isNetwork(err)
}

// ReadInWorkspace sends a batch of statements that change nothing, as one round
// trip: they see the rows of one workspace, each as of its own begin. Results go
// to the functions that the batch was queued with. A dead connection is skipped
// as a begin does.
func (db *DB) ReadInWorkspace(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
	if id.IsZero(ws) {
		return errors.New("send a batch: no workspace given")
	}
	return db.batch(ctx, claims{workspace: ws.String()}, b, db.attempts)
}

// ReadAsMember is ReadInWorkspace with what a person may see of all workspaces.
func (db *DB) ReadAsMember(ctx context.Context, m id.Member, b *pgx.Batch) error {
	if id.IsZero(m) {
		return errors.New("send a batch: no member given")
	}
	return db.batch(ctx, claims{member: m.String()}, b, db.attempts)
}

// ReadAsSystem is ReadInWorkspace with all workspaces. Each use says in a comment why it
// needs this.
func (db *DB) ReadAsSystem(ctx context.Context, b *pgx.Batch) error {
	return db.batch(ctx, claims{system: "on"}, b, db.attempts)
}

// WriteInWorkspace sends a batch of statements as one transaction in one round
// trip: when one of them fails, none has happened. They run one after the other,
// and a later one sees what the earlier did. After an error of the connection
// nobody knows whether it happened.
func (db *DB) WriteInWorkspace(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
	if id.IsZero(ws) {
		return errors.New("send a batch: no workspace given")
	}
	return db.batch(ctx, claims{workspace: ws.String()}, b, 1)
}

// WriteAsSystem is WriteInWorkspace with all workspaces. Each use says in a comment why
// it needs this.
func (db *DB) WriteAsSystem(ctx context.Context, b *pgx.Batch) error {
	return db.batch(ctx, claims{system: "on"}, b, 1)
}

// ChangeInWorkspace is InWorkspace for what looks first and then writes, in two round
// trips: one opens the transaction and sends look, the other sends what change queues,
// and commits. change sees what look's functions have read. When it fails, or queues
// nothing, nothing has happened. An error of a function that reads the results of a
// change comes after the commit.
func (db *DB) ChangeInWorkspace(ctx context.Context, ws id.Workspace, look *pgx.Batch, change func(b *pgx.Batch) error) error {
	if id.IsZero(ws) {
		return errors.New("begin a transaction: no workspace given")
	}
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	c := claims{workspace: ws.String()}
	done, err := db.turn(limited, c)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer done()
	conn, err := db.look(limited, c, look)
	if err != nil {
		return classify(ctx, "begin a transaction", err)
	}
	defer conn.Release() // closes the connection if it is still in a transaction
	b := &pgx.Batch{}
	if err := change(b); err != nil || b.Len() == 0 {
		db.abandon(ctx, conn)
		return err
	}
	b.Queue("commit")
	if err := conn.SendBatch(limited, b).Close(); err != nil {
		db.abandon(ctx, conn)
		return classify(ctx, "change and commit", err)
	}
	return nil
}

// look opens a transaction and sends a batch in it, in one round trip. A dead
// connection is skipped: nothing has been written.
func (db *DB) look(ctx context.Context, c claims, b *pgx.Batch) (*pgxpool.Conn, error) {
	for attempt := 1; ; attempt++ {
		conn, err := db.acquire(ctx)
		if err != nil {
			return nil, err
		}
		if err = conn.SendBatch(ctx, withClaims(c, b, "begin")).Close(); err == nil {
			return conn, nil
		}
		db.abandon(ctx, conn)
		conn.Release()
		if attempt >= db.attempts || ctx.Err() != nil || !isStale(err) {
			return nil, err
		}
	}
}

// abandon rolls back what a connection has open. One that cannot is closed by the pool.
func (db *DB) abandon(ctx context.Context, conn *pgxpool.Conn) {
	if c := conn.Conn(); c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	// Under a context of its own: the caller's may be what ended the transaction.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, _ = conn.Exec(clean, "rollback")
}

// Collect returns a function for a statement of a batch that reads its rows, by the
// columns' names, into a slice.
func Collect[T any](into *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	}
}

// batch puts the claims before the statements. Postgres takes what is sent in one
// go for one transaction, so they are as local as those of a begin.
func (db *DB) batch(ctx context.Context, c claims, b *pgx.Batch, attempts int) error {
	limited, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	done, err := db.turn(limited, c)
	if err != nil {
		return classify(ctx, "send a batch", err)
	}
	defer done()
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

// withClaims returns b behind the statements in front and those that set the claims.
// It is made anew for each attempt: pgx notes in the statements what the connection
// knows of them.
func withClaims(c claims, b *pgx.Batch, front ...string) *pgx.Batch {
	all := &pgx.Batch{}
	for _, sql := range front {
		all.Queue(sql)
	}
	all.Queue(setClaims, c.workspace, c.member, c.system)
	for _, q := range b.QueuedQueries {
		all.QueuedQueries = append(all.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
	}
	return all
}

const setClaims = `select set_config('signalbox.workspace', $1, true), set_config('signalbox.member', $2, true), set_config('signalbox.system', $3, true)`

func (db *DB) batchOnce(ctx context.Context, b *pgx.Batch) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.SendBatch(ctx, b).Close()
}

// acquire takes a connection of the pool; the caller has had its turn, and releases it.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errBusy)
	defer cancel()
	conn, err := db.pool.Acquire(limited)
	if err != nil {
		err = db.busy(limited, err)
	}
	return conn, err
}
