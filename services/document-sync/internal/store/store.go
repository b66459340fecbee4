// Package store keeps documents in Postgres: their state, their history, and the answer to each
// operation.
//
// # A document
//
// A document is the sum of its updates, numbered without gaps. Its sequence is the number of the
// newest one and is kept in the table heads. Updates are committed under the lock of the head, so
// that they become visible in order. Every change is an update, even one without effect on the
// state (a rename).
//
// A snapshot replaces all updates up to a sequence, which are deleted in its transaction. Markdown
// and text are derived from the snapshot's state and may be behind (see Markdown). A deleted
// document leaves a tombstone for a while.
//
// # Writing
//
// Append commits updates of many documents in one transaction (see group). Operations (Operate,
// Create, Rename, Delete) are transactions of their own, which also record the answer under the
// operation's key: the same key returns the recorded answer and changes nothing, on any instance
// and after any crash. Save stores only newer snapshots, so that several instances may save a
// document. Locks are taken in the order documents, heads, snapshots, updates.
//
// # History
//
// A version is a state as left by a member or a member's run. An operation makes one, with its
// update. Each stretch of live editing becomes one, before an operation or with a snapshot
// (queueLive). An operation's version therefore contains nobody else's edits, except those
// committed by another instance at the same time. Bases are what somebody read in order to change
// it (KeepBase): new Markdown can be merged with later edits.
//
// An operation can be undone once, while its version exists and an earlier one has the content
// that it deleted (UndoSource). History is thinned with age and limited in versions and bytes.
//
// # Seeds
//
// The previous release, which may run at the same time, knows documents only as Markdown. What it
// writes is a Seed, whose difference is applied to the state once (ApplySeed). See the migration.
//
// # Failure
//
// Callers without an answer repeat an operation by its key, and an update by sending it again,
// which changes no state.
package store

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// Limits limit a document and its history.
type Limits struct {
	Versions     int   // beyond this many, the older half is thinned
	VersionBytes int64 // likewise, in bytes of content
	StateBytes   int   // of a state, and of an operation's update; 64 MiB if 0
}

// MaxUpdate is the maximum size of an update for Append in bytes.
const MaxUpdate = 8 << 20

const defaultStateBytes = 64 << 20

// Store accesses the tables. It is safe for concurrent use.
type Store struct {
	db     *pg.DB
	limits Limits

	free, taken *group // see Append
	commits     sync.WaitGroup
}

// New returns a store over db. Close it before db.
func New(db *pg.DB, limits Limits) *Store {
	limits.StateBytes = cmp.Or(limits.StateBytes, defaultStateBytes)
	s := &Store{db: db, limits: limits}
	s.free, s.taken = &group{store: s}, &group{store: s, waitsForLocks: true}
	return s
}

// Close waits for pending commits. Nothing may be appended afterwards.
func (s *Store) Close() { s.commits.Wait() }

// Author is the author of a change.
type Author struct {
	Member id.Member
	Run    id.Run // the agent's run, or zero
}

// run is the column run_id.
func (a Author) run() uuid.NullUUID {
	return uuid.NullUUID{UUID: a.Run.UUID, Valid: !id.IsZero(a.Run)}
}

// Proto converts the author for other services.
func (a Author) Proto() *documentv1.Author {
	out := &documentv1.Author{MemberId: a.Member.String()}
	if !id.IsZero(a.Run) {
		out.RunId = a.Run.String()
	}
	return out
}

// Document is the metadata of a document.
type Document struct {
	Workspace id.Workspace
	ID        id.Document
	Name      string
	Sequence  int64 // of the newest update
	CreatedBy id.Member
	CreatedAt time.Time
	// Author and UpdatedAt are those of the last operation or saved live edit.
	Author    Author
	UpdatedAt time.Time
	Deleted   bool
}

// Proto converts the document for other services.
func (d Document) Proto() *documentv1.Document {
	return &documentv1.Document{
		Id:          d.ID.String(),
		WorkspaceId: d.Workspace.String(),
		Name:        d.Name,
		CreatedBy:   d.CreatedBy.String(),
		CreatedAt:   timestamppb.New(d.CreatedAt),
		UpdatedAt:   timestamppb.New(d.UpdatedAt),
		Sequence:    d.Sequence,
	}
}

// columns are the columns read by row, from documents.
const columns = `d.workspace_id, d.id, d.name, coalesce(h.sequence, d.sequence),
	d.created_by, d.created_at, d.updated_by, d.updated_run, d.updated_at, d.deleted_at IS NOT NULL`

// documents joins documents and heads; a tombstone has no head.
const documents = `documents d LEFT JOIN heads h ON h.workspace_id = d.workspace_id AND h.document_id = d.id`

// row reads columns and the columns after them.
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
	d, err := s.one(ctx, ws, doc, `SELECT `+columns+` FROM `+documents+` WHERE d.workspace_id = @ws AND d.id = @id AND d.deleted_at IS NULL`)
	if err != nil {
		return Document{}, fmt.Errorf("get document %s: %w", doc, err)
	}
	return d, nil
}

// Markdown returns a document and its Markdown, if that is current; otherwise the caller has to
// render the state. A missing document is a NotFound fault.
func (s *Store) Markdown(ctx context.Context, ws id.Workspace, doc id.Document) (d Document, markdown string, current bool, err error) {
	var content *string
	d, err = s.one(ctx, ws, doc, `
		SELECT `+columns+`, CASE WHEN d.content_sequence = h.sequence AND d.seed_before IS NULL THEN d.content END
		FROM `+documents+` WHERE d.workspace_id = @ws AND d.id = @id AND d.deleted_at IS NULL`, &content)
	if err != nil {
		return Document{}, "", false, fmt.Errorf("read document %s: %w", doc, err)
	}
	if content == nil {
		return d, "", false, nil
	}
	return d, *content, true, nil
}

// one reads a document in one round trip. A missing one is a NotFound fault.
func (s *Store) one(ctx context.Context, ws id.Workspace, doc id.Document, sql string, rest ...any) (d Document, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, Ref{ws, doc}.args()).Query(func(rows pgx.Rows) (err error) {
		d, err = pgx.CollectExactlyOneRow(rows, row(rest...))
		return err
	})
	if err = s.db.ReadInWorkspace(ctx, ws, b); pg.NoRows(err) {
		err = notFound(doc)
	}
	return d, err
}

// Cursor is the position after a page of a list: its last document.
type Cursor struct {
	UpdatedAt time.Time
	ID        id.Document
}

// List returns up to limit documents after a place (nil: from the newest change) whose names
// contain all words. A document that does not change meanwhile is on exactly one page; one that
// changes moves to the front of the list.
func (s *Store) List(ctx context.Context, ws id.Workspace, words []string, after *Cursor, limit int) ([]Document, error) {
	patterns := make([]string, 0, len(words)) // not nil: NULL would match no name
	for _, w := range words {
		patterns = append(patterns, pg.Containing(w))
	}
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, id.Document{UUID: uuid.Max}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	out, err := s.many(ctx, ws, `SELECT `+columns+` FROM `+documents+`
		WHERE d.workspace_id = @ws AND d.deleted_at IS NULL AND (d.updated_at, d.id) < (@at, @last) AND d.name ILIKE ALL (@patterns)
		ORDER BY d.updated_at DESC, d.id DESC LIMIT @limit`,
		pg.Args{"ws": ws, "at": at, "last": last, "patterns": patterns, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	return out, nil
}

// Changed returns up to limit documents of the workspace that changed within span, including
// deleted ones, oldest change first, after a place (nil: from the beginning). A live edit counts
// when it is saved.
func (s *Store) Changed(ctx context.Context, ws id.Workspace, span time.Duration, after *Cursor, limit int) ([]Document, error) {
	at, last := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, id.Document{}
	if after != nil {
		at, last = pgtype.Timestamptz{Time: after.UpdatedAt, Valid: true}, after.ID
	}
	out, err := s.many(ctx, ws, `SELECT `+columns+` FROM `+documents+`
		WHERE d.workspace_id = @ws AND d.updated_at > now() - make_interval(secs => @span) AND (d.updated_at, d.id) > (@at, @last)
		ORDER BY d.updated_at, d.id LIMIT @limit`,
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

// housekeepBatch limits one transaction of Housekeep.
const housekeepBatch = 1000

// Housekeep removes operations, bases and tombstones older than age. All instances may run it
// concurrently.
func (s *Store) Housekeep(ctx context.Context, age time.Duration) (removed int64, err error) {
	for _, statement := range []string{
		`DELETE FROM operations WHERE (workspace_id, key) IN (
			SELECT workspace_id, key FROM operations WHERE created_at < now() - make_interval(secs => @age) LIMIT @limit FOR UPDATE SKIP LOCKED)`,
		`DELETE FROM bases WHERE (workspace_id, document_id, sequence) IN (
			SELECT workspace_id, document_id, sequence FROM bases WHERE created_at < now() - make_interval(secs => @age) LIMIT @limit FOR UPDATE SKIP LOCKED)`,
		`DELETE FROM documents WHERE (workspace_id, id) IN (
			SELECT workspace_id, id FROM documents WHERE deleted_at < now() - make_interval(secs => @age) LIMIT @limit FOR UPDATE SKIP LOCKED)`,
	} {
		for {
			var n int64
			// As the system: it concerns all workspaces.
			err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, statement, pg.Args{"age": age.Seconds(), "limit": housekeepBatch})
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
