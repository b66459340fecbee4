// Package store keeps documents in Postgres: what they are, what they were, and what
// was answered to each operation.
//
// # A document
//
// A document is the sum of its updates, which are numbered without a gap: its
// sequence is the number of the newest, and the only place where that is kept is a row
// of the table heads. An update is committed under the lock of the head, so that
// updates become visible in the order of their numbers, to anyone, and nobody ever
// reads a hole. Each change of a document is such an update, also one that leaves the
// state as it is (a new name).
//
// A snapshot stands for all updates up to some sequence; they are deleted in the
// transaction that stores it. Markdown and text are derived from the state where the
// snapshot is made, and are therefore a little behind, or current (Markdown tells).
//
// A document that was deleted leaves a row without content (a tombstone) for a while,
// with the sequence that the deletion has.
//
// # Writing
//
// Append commits updates of any number of documents in one transaction (type group):
// while one is under way the next ones gather. Operations (Operate, Create, Rename,
// Delete) are transactions of their own, which also write what was answered, by the
// operation's key: the same key again gets the recorded answer and changes nothing, on
// any instance and after any crash. Save stores a snapshot, and only ever a newer one,
// so that any number of instances may save the same document.
//
// Locks are taken in the order documents, heads, snapshots, updates.
//
// # History
//
// A version is a state as somebody left it: a member, or a member's run. An operation
// makes one in its transaction, with the update that it was. What people typed becomes one
// for each stretch, whoever saves the document: before an operation and with a snapshot the
// updates tell whether, and by whom, there is something that no version has (queueLive). A
// snapshot that is saved while they are typing leaves that to a later one, and the row of the last edit with it. So
// an operation's version has nobody else's words, but for what another instance committed
// while it was made, which the next version has.
//
// What somebody read in order to change it is kept for a while (KeepBase), beside the
// versions: new Markdown can be merged with what others have written since.
//
// An operation can be undone (Done) as long as its version is there, and a version before
// it still has what it deleted. The undo is an operation, whose transaction marks the
// version that it takes back: that is done once. History is thinned out with age, and
// bounded in versions and bytes.
//
// # Documents as text
//
// The previous version of the program knows documents only as Markdown, and may be
// running at the same time. What it writes is a Seed: a text before and one after, whose
// difference somebody who has the state brings in (Plant), once. The migration
// tells the whole story.
//
// # If it dies here
//
// A transaction is there as a whole, or was never there. Who was not told (the
// connection broke, the process died) asks again: an operation by its key, an update
// by sending it again, which changes no state though it takes another number.
package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Limits bound what a document and its history may take.
type Limits struct {
	Versions     int   // beyond this many, the older half is thinned
	VersionBytes int64 // beyond this much content, too
	StateBytes   int   // of a state, and of what an operation adds to it; 64 MiB when 0
}

// MaxUpdate is how many bytes one update may have that Append takes.
const MaxUpdate = 8 << 20

const defaultStateBytes = 64 << 20

// Store is the tables. It is safe for concurrent use.
type Store struct {
	db     *pg.DB
	limits Limits

	free, taken           *group // see Append
	commits               sync.WaitGroup
	transactions, updates atomic.Int64
}

// New returns a store over db. It is closed before db is.
func New(db *pg.DB, limits Limits) *Store {
	limits.StateBytes = cmp.Or(limits.StateBytes, defaultStateBytes)
	s := &Store{db: db, limits: limits}
	s.free, s.taken = &group{store: s}, &group{store: s, waits: true}
	return s
}

// Close waits for the updates that are being committed. Nothing is appended any more.
func (s *Store) Close() { s.commits.Wait() }

// Author is who made a change.
type Author struct {
	Member id.Member
	Run    id.Run // zero where no agent's run was at work
}

// run is the column run_id.
func (a Author) run() uuid.NullUUID {
	return uuid.NullUUID{UUID: a.Run.UUID, Valid: !id.IsZero(a.Run)}
}

// Document is what is known of a document without looking into it.
type Document struct {
	Workspace id.Workspace
	ID        id.Document
	Name      string
	Sequence  int64 // of the newest update
	CreatedBy id.Member
	CreatedAt time.Time
	// Author and UpdatedAt are of the last operation, or of live editing as far as it
	// was saved.
	Author    Author
	UpdatedAt time.Time
	Deleted   bool
}

// columns are those that row reads, of what documents names.
const columns = `d.workspace_id, d.id, d.name, coalesce(h.sequence, d.sequence),
	d.created_by, d.created_at, d.updated_by, d.updated_run, d.updated_at, d.deleted_at is not null`

// documents are the documents and their heads; a tombstone has none.
const documents = `documents d left join heads h on h.workspace_id = d.workspace_id and h.document_id = d.id`

// row reads columns and what comes behind them.
func row(rest ...any) func(pgx.CollectableRow) (Document, error) {
	return func(r pgx.CollectableRow) (Document, error) {
		var d Document
		var run uuid.NullUUID
		into := append([]any{&d.Workspace, &d.ID, &d.Name, &d.Sequence, &d.CreatedBy, &d.CreatedAt, &d.Author.Member, &run, &d.UpdatedAt, &d.Deleted}, rest...)
		err := r.Scan(into...)
		d.Author.Run = id.Run{UUID: run.UUID}
		return d, err
	}
}

func notFound(doc id.Document) error {
	return fault.New(fault.NotFound, "document %s does not exist", doc)
}

// Get returns a document, or a NotFound fault.
func (s *Store) Get(ctx context.Context, ws id.Workspace, doc id.Document) (Document, error) {
	d, err := s.one(ctx, ws, doc, `select `+columns+` from `+documents+` where d.workspace_id = $1 and d.id = $2 and d.deleted_at is null`)
	if err != nil {
		return Document{}, fmt.Errorf("get document %s: %w", doc, err)
	}
	return d, nil
}

// Markdown returns a document and its Markdown, if that is known to be current;
// otherwise somebody must render the state. An absent document is a NotFound fault.
func (s *Store) Markdown(ctx context.Context, ws id.Workspace, doc id.Document) (d Document, markdown string, current bool, err error) {
	var content *string
	d, err = s.one(ctx, ws, doc, `
		select `+columns+`, case when d.content_sequence = h.sequence and d.seed_before is null then d.content end
		from `+documents+` where d.workspace_id = $1 and d.id = $2 and d.deleted_at is null`, &content)
	if err != nil {
		return Document{}, "", false, fmt.Errorf("read document %s: %w", doc, err)
	}
	if content == nil {
		return d, "", false, nil
	}
	return d, *content, true, nil
}

// one reads a document in one round trip; it is a NotFound fault that there is none.
func (s *Store) one(ctx context.Context, ws id.Workspace, doc id.Document, sql string, rest ...any) (d Document, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, ws, doc).Query(func(rows pgx.Rows) (err error) {
		d, err = pgx.CollectExactlyOneRow(rows, row(rest...))
		return err
	})
	if err = s.db.ReadInWorkspace(ctx, ws, b); pg.NoRows(err) {
		err = notFound(doc)
	}
	return d, err
}

// Place is where a page of a list begins: behind the document that was last on
// the page before.
type Place struct {
	UpdatedAt time.Time
	ID        id.Document
}

// List returns up to limit documents behind after (nil: from the newest change
// on) whose names hold all of words. Documents that do not change meanwhile come on
// exactly one page; one that changes moves to the front, where a new first page shows
// it.
func (s *Store) List(ctx context.Context, ws id.Workspace, words []string, after *Place, limit int) ([]Document, error) {
	patterns := make([]string, 0, len(words)) // never nil: null would match no name
	for _, w := range words {
		patterns = append(patterns, "%"+likeEscaper.Replace(w)+"%")
	}
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, id.Document{UUID: uuid.Max}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	out, err := s.many(ctx, ws, `select `+columns+` from `+documents+`
		where d.workspace_id = @ws and d.deleted_at is null and (d.updated_at, d.id) < (@at, @last) and d.name ilike all (@patterns)
		order by d.updated_at desc, d.id desc limit @limit`,
		pg.Args{"ws": ws, "at": at, "last": last, "patterns": patterns, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	return out, nil
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Changed returns documents of the workspace that changed within the last span,
// deleted ones included, oldest change first: up to limit of them behind after (nil:
// all). A document that is edited live counts as changed when that is saved.
func (s *Store) Changed(ctx context.Context, ws id.Workspace, span time.Duration, after *Place, limit int) ([]Document, error) {
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, id.Document{}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	out, err := s.many(ctx, ws, `select `+columns+` from `+documents+`
		where d.workspace_id = @ws and d.updated_at > now() - make_interval(secs => @span) and (d.updated_at, d.id) > (@at, @last)
		order by d.updated_at, d.id limit @limit`,
		pg.Args{"ws": ws, "span": span.Seconds(), "at": at, "last": last, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("read changed documents: %w", err)
	}
	return out, nil
}

func (s *Store) many(ctx context.Context, ws id.Workspace, sql string, args pg.Args) (out []Document, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, args).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, row())
		return err
	})
	return out, s.db.ReadInWorkspace(ctx, ws, b)
}

// housekeepBatch bounds one transaction of Housekeep.
const housekeepBatch = 1000

// Housekeep removes operations, bases and tombstones older than age. It is safe to run
// on every instance at once.
func (s *Store) Housekeep(ctx context.Context, age time.Duration) (removed int64, err error) {
	for _, statement := range []string{
		`delete from operations where (workspace_id, key) in (
			select workspace_id, key from operations where created_at < now() - make_interval(secs => $1) limit $2 for update skip locked)`,
		`delete from bases where (workspace_id, document_id, sequence) in (
			select workspace_id, document_id, sequence from bases where created_at < now() - make_interval(secs => $1) limit $2 for update skip locked)`,
		`delete from documents where (workspace_id, id) in (
			select workspace_id, id from documents where deleted_at < now() - make_interval(secs => $1) limit $2 for update skip locked)`,
	} {
		for {
			var n int64
			// As the system: age knows no workspace.
			err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, statement, age.Seconds(), housekeepBatch)
				n = tag.RowsAffected()
				return err
			})
			if err != nil {
				return removed, fmt.Errorf("remove old operations, bases and tombstones: %w", err)
			}
			removed += n
			if n < housekeepBatch {
				break
			}
		}
	}
	return removed, nil
}
