package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
)

// Limits of one transaction.
const (
	groupUpdates = 1000
	groupBytes   = 16 << 20 // at least one update is always included
	groupTries   = 5        // after deadlocks and serialization failures
)

// Append commits an update, which must not be changed afterwards, and returns its sequence. It
// blocks until the commit, which includes concurrent updates, or until ctx is done: then the
// update may have been committed or not. So it may after any error other than a NotFound fault
// (the document was deleted) and a TooLarge fault; a repetition does no harm.
func (s *Store) Append(ctx context.Context, ref Ref, author Author, update []byte) (int64, error) {
	if len(update) > MaxUpdate {
		return 0, fault.New(fault.TooLarge, "the update has %d bytes; one change of a document may have at most %d: make it in smaller steps", len(update), MaxUpdate)
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to document %s: %w", ref.Document, err)
	}
	a := &pendingAppend{ref: ref, author: author, data: update, done: make(chan struct{})}
	s.free.add(ctx, a)
	select {
	case <-a.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("append to document %s: %w", ref.Document, ctx.Err())
	}
	if a.err != nil {
		return 0, fmt.Errorf("append to document %s: %w", ref.Document, a.err)
	}
	return a.sequence, nil
}

// pendingAppend is an update to be committed.
type pendingAppend struct {
	ref    Ref
	author Author
	data   []byte

	done     chan struct{} // closed when the fields below are set
	sequence int64
	err      error
}

func (a *pendingAppend) end(sequence int64, err error) {
	a.sequence, a.err = sequence, err
	close(a.done)
}

// fail ends a pendingAppend unless it has ended.
func (a *pendingAppend) fail(err error) {
	select {
	case <-a.done:
	default:
		a.end(0, err)
	}
}

// group commits appends in one transaction at a time, each with everything that arrived during
// the previous one. A goroutine runs while there is something to do.
//
// There are two groups. The first takes only heads that are not locked and passes the others to
// the second, which waits for locks; heads that it cannot find were deleted. So a document with
// a long-held lock, by an operation, delays only others like it.
type group struct {
	store         *Store
	waitsForLocks bool

	mu      sync.Mutex // guards the rest
	queue   []*pendingAppend
	running bool
}

func (g *group) add(ctx context.Context, more ...*pendingAppend) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, more...)
	if len(g.queue) > 0 && !g.running {
		g.running = true
		// The first caller's context must not affect the others.
		ctx = context.WithoutCancel(ctx)
		g.store.commits.Go(func() { g.run(ctx) })
	}
}

func (g *group) run(ctx context.Context) {
	for batch := g.next(); len(batch) > 0; batch = g.next() {
		if err := panics.Try(func() error { g.commit(ctx, batch); return nil }); err != nil {
			for _, a := range batch {
				a.fail(err)
			}
		}
	}
}

// next returns what fits into a transaction, in order of arrival.
func (g *group) next() []*pendingAppend {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, size := 0, 0
	for n < min(len(g.queue), groupUpdates) && (n == 0 || size+len(g.queue[n].data) <= groupBytes) {
		size += len(g.queue[n].data)
		n++
	}
	batch := g.queue[:n:n]
	g.queue = g.queue[n:]
	if len(g.queue) == 0 {
		g.queue, g.running = nil, n > 0
	}
	return batch
}

// commit commits a batch and ends its appends, except those passed to the other group. When
// Postgres refuses a batch without being unavailable, the batch is bisected to find the culprit.
func (g *group) commit(ctx context.Context, batch []*pendingAppend) {
	parts := partsOf(batch)
	var taken []*pendingAppend
	var err error
	for try := 1; ; try++ {
		taken, err = g.store.transact(ctx, parts, g.waitsForLocks)
		if try == groupTries || !pg.HasCode(err, "40P01") && !pg.HasCode(err, "40001") { // deadlock, serialization
			break
		}
	}
	switch half := len(batch) / 2; {
	case err == nil:
		g.store.taken.add(ctx, taken...)
	case half == 0 || fault.KindOf(err) == fault.Unavailable:
		for _, a := range batch {
			a.end(0, err)
		}
	default:
		g.commit(ctx, batch[:half])
		g.commit(ctx, batch[half:])
	}
}

// part is the part of a batch for one document.
type part struct {
	ref Ref
	all []*pendingAppend

	before int64 // the sequence before the first; 0 if the head was locked or missing
}

func partsOf(batch []*pendingAppend) []*part {
	var parts []*part
	byRef := map[Ref]*part{}
	for _, a := range batch {
		p := byRef[a.ref]
		if p == nil {
			p = &part{ref: a.ref}
			byRef[a.ref] = p
			parts = append(parts, p)
		}
		p.all = append(p.all, a)
	}
	return parts
}

// appendSQL locks the heads, advances each by the number of its updates and inserts these. The
// lock, and then the update, read a head again that has changed since the statement began. %s is
// what to do about locked heads.
const appendSQL = `
	WITH locked AS MATERIALIZED (
		SELECT h.workspace_id, h.document_id, g.count, g.place FROM heads h
		JOIN unnest(@workspaces::uuid[], @documents::uuid[], @counts::bigint[])
			WITH ORDINALITY AS g (workspace_id, document_id, count, place) USING (workspace_id, document_id)
		ORDER BY h.workspace_id, h.document_id FOR UPDATE OF h %s
	), moved AS (
		UPDATE heads h SET sequence = h.sequence + l.count FROM locked l
		WHERE h.workspace_id = l.workspace_id AND h.document_id = l.document_id
		RETURNING h.workspace_id, h.document_id, l.place, h.sequence - l.count AS before
	), added AS (
		INSERT INTO updates (workspace_id, document_id, sequence, data, member_id, run_id, created_at)
		SELECT m.workspace_id, m.document_id, m.before + u.nth, u.data, u.member, u.run, now()
		FROM unnest(@places::bigint[], @nths::bigint[], @data::bytea[], @members::uuid[], @runs::uuid[]) AS u (place, nth, data, member, run)
		JOIN moved m ON m.place = u.place
	)
	SELECT place, before FROM moved`

var (
	appendWaiting = fmt.Sprintf(appendSQL, "")
	appendFree    = fmt.Sprintf(appendSQL, "skip locked")
)

// transact commits parts and ends their appends, in one transaction. It returns those whose
// heads were locked; after an error none have ended.
func (s *Store) transact(ctx context.Context, parts []*part, waitsForLocks bool) (taken []*pendingAppend, err error) {
	sql := appendFree
	if waitsForLocks {
		sql = appendWaiting
	}
	for _, p := range parts {
		p.before = 0 // reset after a failed attempt
	}
	b := &pgx.Batch{}
	b.Queue(sql, argsOf(parts)).Query(func(rows pgx.Rows) error {
		var place int
		var before int64
		_, err := pgx.ForEachRow(rows, []any{&place, &before}, func() error {
			parts[place-1].before = before
			return nil
		})
		return err
	})
	// As the system: the open documents belong to many workspaces.
	err = s.db.WriteAsSystem(ctx, b)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		switch {
		case p.before > 0:
			for i, a := range p.all {
				a.end(p.before+1+int64(i), nil)
			}
		case !waitsForLocks:
			taken = append(taken, p.all...)
		default:
			for _, a := range p.all {
				a.end(0, notFound(p.ref.Document))
			}
		}
	}
	return taken, nil
}

// argsOf returns the parts as columns, with one row per document and one per update, which has
// the position of its document and its own in it.
func argsOf(parts []*part) pg.Args {
	var (
		refs         []Ref
		counts       []int64
		places, nths []int64
		data         [][]byte
		members      []pgtype.UUID // pgx encodes them without reflection on each
		runs         []pgtype.UUID
	)
	for i, p := range parts {
		refs, counts = append(refs, p.ref), append(counts, int64(len(p.all)))
		for j, a := range p.all {
			places, nths = append(places, int64(i+1)), append(nths, int64(j+1))
			data, members = append(data, a.data), append(members, pgtype.UUID{Bytes: a.author.Member.UUID, Valid: true})
			runs = append(runs, pgtype.UUID{Bytes: a.author.Run.UUID, Valid: !id.IsZero(a.author.Run)})
		}
	}
	workspaces, docs := columnsOf(refs)
	return pg.Args{
		"workspaces": workspaces, "documents": docs, "counts": counts,
		"places": places, "nths": nths, "data": data, "members": members, "runs": runs,
	}
}
