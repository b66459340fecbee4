// Package store keeps documents in Postgres: their content, their history, and
// what was answered to each operation.
//
// Every change of a document is one transaction (Change): it locks the row, asks
// whether the operation's key was seen before, lets the caller say what becomes
// of the document, and writes content, version and answer together. The same key
// again gets the recorded answer and changes nothing, on any instance and after
// any crash: either the transaction is there, with its answer, or it never was.
//
// A document's sequence grows by exactly one with every change. A deleted
// document leaves a row without content (a tombstone) for a while.
package store

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Limits bound what a document's history may take.
type Limits struct {
	Versions     int   // beyond this many, the older half is thinned
	VersionBytes int64 // beyond this much content, too
}

// Store is the tables. It is safe for concurrent use.
type Store struct {
	db     *pg.DB
	limits Limits
}

// New returns a store over db.
func New(db *pg.DB, limits Limits) *Store { return &Store{db: db, limits: limits} }

// Author is who made a change.
type Author struct {
	Member id.Member
	Run    id.Run // zero where no agent's run was at work
}

// Document is a row. Content is only there where a function says so.
type Document struct {
	Workspace id.Workspace
	ID        id.Document
	Name      string
	Content   string
	Sequence  int64
	CreatedBy id.Member
	CreatedAt time.Time
	Author    Author // of the last change
	UpdatedAt time.Time
	Deleted   bool

	versions     int
	versionBytes int64
}

// columns are those that row reads, without content.
const columns = `workspace_id, id, name, sequence, created_by, created_at, updated_by, updated_run, updated_at, deleted_at is not null`

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

// Get returns a document without content, or a NotFound fault.
func (s *Store) Get(ctx context.Context, ws id.Workspace, doc id.Document) (Document, error) {
	var d Document
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `select `+columns+` from documents where workspace_id = $1 and id = $2 and deleted_at is null`, ws, doc)
		d, err = pgx.CollectExactlyOneRow(rows, row())
		return err
	})
	if pg.NoRows(err) {
		return Document{}, notFound(doc)
	}
	if err != nil {
		return Document{}, fmt.Errorf("get document %s: %w", doc, err)
	}
	return d, nil
}

// Read returns a document with its content, or a NotFound fault.
func (s *Store) Read(ctx context.Context, ws id.Workspace, doc id.Document) (Document, error) {
	var d Document
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) (err error) {
		var content string
		rows, _ := tx.Query(ctx, `select `+columns+`, content from documents where workspace_id = $1 and id = $2 and deleted_at is null`, ws, doc)
		d, err = pgx.CollectExactlyOneRow(rows, row(&content))
		d.Content = content
		return err
	})
	if pg.NoRows(err) {
		return Document{}, notFound(doc)
	}
	if err != nil {
		return Document{}, fmt.Errorf("read document %s: %w", doc, err)
	}
	return d, nil
}

// Place is where a page of a list begins: behind the document that was last on
// the page before.
type Place struct {
	UpdatedAt time.Time
	ID        id.Document
}

// List returns up to limit documents behind after (nil: from the newest change
// on) whose names hold all of words, without content. Documents that do not
// change meanwhile come on exactly one page; one that changes moves to the front,
// where a new first page shows it.
func (s *Store) List(ctx context.Context, ws id.Workspace, words []string, after *Place, limit int) ([]Document, error) {
	patterns := make([]string, 0, len(words)) // never nil: null would match no name
	for _, w := range words {
		patterns = append(patterns, "%"+likeEscaper.Replace(w)+"%")
	}
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, id.Document{UUID: uuid.Max}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	var out []Document
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `select `+columns+` from documents
			where workspace_id = @ws and deleted_at is null and (updated_at, id) < (@at, @last) and name ilike all (@patterns)
			order by updated_at desc, id desc limit @limit`,
			pg.Args{"ws": ws, "at": at, "last": last, "patterns": patterns, "limit": limit})
		out, err = pgx.CollectRows(rows, row())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	return out, nil
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Changed returns documents of the workspace that changed within the last span,
// deleted ones included, oldest change first and without content: up to limit of
// them behind after (nil: all).
func (s *Store) Changed(ctx context.Context, ws id.Workspace, span time.Duration, after *Place, limit int) ([]Document, error) {
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, id.Document{}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	var out []Document
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `select `+columns+` from documents
			where workspace_id = @ws and updated_at > now() - make_interval(secs => @span) and (updated_at, id) > (@at, @last)
			order by updated_at, id limit @limit`,
			pg.Args{"ws": ws, "span": span.Seconds(), "at": at, "last": last, "limit": limit})
		out, err = pgx.CollectRows(rows, row())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read changed documents: %w", err)
	}
	return out, nil
}

// Version is an entry of a document's history, without its content.
type Version struct {
	Version   int64
	Author    Author
	Operation string
	Name      string
	CreatedAt time.Time
}

// Versions returns up to limit entries below before (0: from the newest on),
// newest first, or a NotFound fault.
func (s *Store) Versions(ctx context.Context, ws id.Workspace, doc id.Document, before int64, limit int) ([]Version, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	var out []Version
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select version, member_id, run_id, operation, name, created_at from versions
			where workspace_id = $1 and document_id = $2 and version < $3 order by version desc limit $4`, ws, doc, before, limit)
		var err error
		if out, err = pgx.CollectRows(rows, version); err != nil || len(out) > 0 {
			return err
		}
		var exists bool // a deleted document has no versions left
		err = tx.QueryRow(ctx, `select exists (select from documents where workspace_id = $1 and id = $2 and deleted_at is null)`, ws, doc).Scan(&exists)
		if err == nil && !exists {
			err = notFound(doc)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the versions of document %s: %w", doc, err)
	}
	return out, nil
}

func version(r pgx.CollectableRow) (Version, error) {
	var v Version
	var run uuid.NullUUID
	err := r.Scan(&v.Version, &v.Author.Member, &run, &v.Operation, &v.Name, &v.CreatedAt)
	v.Author.Run = id.Run{UUID: run.UUID}
	return v, err
}

// housekeepBatch bounds one transaction of Housekeep.
const housekeepBatch = 1000

// Housekeep removes operations and tombstones older than age. It is safe to run
// on every instance at once.
func (s *Store) Housekeep(ctx context.Context, age time.Duration) (removed int64, err error) {
	for _, statement := range []string{
		`delete from operations where (workspace_id, key) in (
			select workspace_id, key from operations where created_at < now() - make_interval(secs => $1) limit $2 for update skip locked)`,
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
				return removed, fmt.Errorf("remove old operations and tombstones: %w", err)
			}
			removed += n
			if n < housekeepBatch {
				break
			}
		}
	}
	return removed, nil
}
