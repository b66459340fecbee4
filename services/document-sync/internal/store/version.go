package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// Version is an entry of a document's history, without its content.
type Version struct {
	Version   int64
	Author    Author
	Operation string
	Name      string
	CreatedAt time.Time
	// Undoes is the version that this one undid, and UndoneBy the one that undid this one; 0
	// for none.
	Undoes, UndoneBy int64
	// Undoable means that it is an operation with a known change that was not undone.
	Undoable bool
	// Added and Removed count words against the version before it, or are nil.
	Added, Removed *int32
	// Label is what people call it, or empty.
	Label string
}

// Proto converts the version for other services.
func (v Version) Proto() *documentv1.Version {
	return &documentv1.Version{
		Version:   v.Version,
		Author:    v.Author.Proto(),
		CreatedAt: timestamppb.New(v.CreatedAt),
		Operation: v.Operation,
		Name:      v.Name,
		Undoes:    v.Undoes,
		UndoneBy:  v.UndoneBy,
		Undoable:  v.Undoable,

		Label: v.Label, WordsAdded: v.Added, WordsRemoved: v.Removed,
	}
}

// Old is a version with its content.
type Old struct {
	Version
	Markdown string
	State    []byte // v2; nil if only Markdown was kept
}

const versionColumns = `version, member_id, run_id, operation, name, created_at,
	coalesce(undoes, 0), coalesce(undone_by, 0), change IS NOT NULL AND undone_by IS NULL, label`

func version(rest ...any) func(pgx.CollectableRow) (Version, error) {
	return func(r pgx.CollectableRow) (Version, error) {
		var v Version
		var run uuid.NullUUID
		err := r.Scan(append([]any{&v.Version, &v.Author.Member, &run, &v.Operation, &v.Name, &v.CreatedAt, &v.Undoes, &v.UndoneBy, &v.Undoable, &v.Label}, rest...)...)
		v.Author.Run = id.Run{UUID: run.UUID}
		return v, err
	}
}

// Versions returns up to limit versions below before (0: from the newest), newest first, or a
// NotFound fault.
func (s *Store) Versions(ctx context.Context, ws id.Workspace, doc id.Document, before int64, limit int) ([]Version, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	var out []Version
	var exists bool // a deleted document has no versions
	b := &pgx.Batch{}
	b.Queue(`SELECT `+versionColumns+` FROM versions
		WHERE workspace_id = @ws AND document_id = @id AND version < @before ORDER BY version DESC LIMIT @limit`,
		pg.Args{"ws": ws, "id": doc, "before": before, "limit": limit}).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, version())
		return err
	})
	b.Queue(`SELECT EXISTS (SELECT FROM documents WHERE workspace_id = @ws AND id = @id AND deleted_at IS NULL)`, Ref{ws, doc}.args()).QueryRow(func(r pgx.Row) error {
		return r.Scan(&exists)
	})
	err := s.db.ReadInWorkspace(ctx, ws, b)
	if err == nil && !exists {
		err = notFound(doc)
	}
	if err != nil {
		return nil, fmt.Errorf("read the versions of document %s: %w", doc, err)
	}
	return out, nil
}

// maxCompared bounds the Markdown in which words are counted.
const maxCompared = 128 << 10

// CountWords sets what each of the versions, consecutive and newest first, added and removed.
func (s *Store) CountWords(ctx context.Context, ref Ref, all []Version) error {
	if len(all) == 0 {
		return nil
	}
	type text struct {
		Version int64
		Content *string
	}
	var texts []text // newest first, with the one before the last
	b := &pgx.Batch{}
	b.Queue(`SELECT version, CASE WHEN octet_length(content) <= @most THEN content END AS content FROM versions
		WHERE workspace_id = @ws AND document_id = @id AND version <= @newest ORDER BY version DESC LIMIT @limit`,
		pg.Args{"ws": ref.Workspace, "id": ref.Document, "newest": all[0].Version, "limit": len(all) + 1, "most": maxCompared}).Query(func(rows pgx.Rows) (err error) {
		texts, err = pgx.CollectRows(rows, pgx.RowToStructByName[text])
		return err
	})
	if err := s.db.ReadInWorkspace(ctx, ref.Workspace, b); err != nil {
		return fmt.Errorf("read versions to compare: %w", err)
	}
	for i := range all {
		at := slices.IndexFunc(texts, func(t text) bool { return t.Version == all[i].Version })
		if at < 0 || texts[at].Content == nil {
			continue // thinned meanwhile, or too large
		}
		before := new("")
		if at+1 < len(texts) {
			before = texts[at+1].Content
		}
		if before != nil {
			added, removed := wordsChanged(*before, *texts[at].Content)
			all[i].Added, all[i].Removed = &added, &removed
		}
	}
	return nil
}

// wordsChanged counts the words that the second text has and the first lacks, and the reverse. A
// word that has moved is neither.
func wordsChanged(before, after string) (added, removed int32) {
	left := map[string]int32{}
	for w := range strings.FieldsSeq(before) {
		left[w]++
	}
	for w := range strings.FieldsSeq(after) {
		if left[w]--; left[w] < 0 {
			added++
		}
	}
	for _, n := range left {
		removed += max(0, n)
	}
	return added, removed
}

// Compared returns a version with its content and that of the version before it, empty for
// none, or a NotFound fault.
func (s *Store) Compared(ctx context.Context, ref Ref, number int64) (old Old, before string, err error) {
	old.Version, err = s.oneVersion(ctx, ref, number, `content, coalesce((
		SELECT p.content FROM versions p
		WHERE p.workspace_id = v.workspace_id AND p.document_id = v.document_id AND p.version < v.version
		ORDER BY p.version DESC LIMIT 1), '')`, &old.Markdown, &before)
	return old, before, err
}

// Version returns an old version, or a NotFound fault.
func (s *Store) Version(ctx context.Context, ref Ref, number int64) (old Old, err error) {
	old.Version, err = s.oneVersion(ctx, ref, number, `content, state`, &old.Markdown, &old.State)
	return old, err
}

// oneVersion reads a version and more columns of it into rest.
func (s *Store) oneVersion(ctx context.Context, ref Ref, number int64, more string, rest ...any) (v Version, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT `+versionColumns+`, `+more+` FROM versions v WHERE workspace_id = @ws AND document_id = @id AND version = @version`,
		pg.Args{"ws": ref.Workspace, "id": ref.Document, "version": number}).Query(func(rows pgx.Rows) (err error) {
		v, err = pgx.CollectExactlyOneRow(rows, version(rest...))
		return err
	})
	err = s.read(ctx, ref, b)
	if pg.NoRows(err) {
		err = noVersion(ref, number)
	}
	if err != nil {
		return Version{}, fmt.Errorf("read version %d: %w", number, err)
	}
	return v, nil
}

// maxLabels bounds the labelled versions of a document, which are not thinned.
const maxLabels = 50

// Label gives a version a label, or takes it away if that is empty, and returns the version. It ends
// the stretch of live editing that the version is about, so that its content stays.
func (s *Store) Label(ctx context.Context, ref Ref, number int64, label string) (v Version, err error) {
	args := pg.Args{"ws": ref.Workspace, "id": ref.Document, "version": number, "label": label}
	err = s.db.InWorkspace(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		// The lock serializes labels, which are counted, and excludes writers of versions.
		found, err := tx.Exec(ctx, `SELECT FROM documents WHERE workspace_id = @ws AND id = @id AND deleted_at IS NULL FOR UPDATE`, args)
		if err != nil {
			return err
		}
		if found.RowsAffected() == 0 {
			return notFound(ref.Document)
		}
		var others int
		err = tx.QueryRow(ctx, `SELECT count(*) FROM versions WHERE workspace_id = @ws AND document_id = @id AND version <> @version AND label <> ''`, args).Scan(&others)
		if err != nil {
			return err
		}
		if label != "" && others >= maxLabels {
			return fault.New(fault.Limited, "this document has %d named versions, which is the most: take the name of another one away", maxLabels)
		}
		rows, err := tx.Query(ctx, `
			UPDATE versions SET label = @label, began_at = NULL
			WHERE workspace_id = @ws AND document_id = @id AND version = @version
			RETURNING `+versionColumns, args)
		if err != nil {
			return err
		}
		v, err = pgx.CollectExactlyOneRow(rows, version())
		return err
	})
	if pg.NoRows(err) {
		err = noVersion(ref, number)
	}
	if err != nil {
		return Version{}, fmt.Errorf("label version %d: %w", number, err)
	}
	return v, nil
}

func noVersion(ref Ref, number int64) error {
	return fault.New(fault.NotFound, "document %s has no version %d: history is thinned as it ages; list its versions, and restore one of them", ref.Document, number)
}

// UndoSource is a version that is to be undone.
type UndoSource struct {
	Version
	Change []byte // a Yjs update, v1; nil if unknown
	// Before is the v2 state of the previous version, with the content that this one deleted
	// unless versions in between were thinned; nil if there is none.
	Before []byte
}

// UndoSource returns a version with what is needed to undo it, or a NotFound fault.
func (s *Store) UndoSource(ctx context.Context, ref Ref, number int64) (source UndoSource, err error) {
	source.Version, err = s.oneVersion(ctx, ref, number, `change, (
		SELECT p.state FROM versions p
		WHERE p.workspace_id = v.workspace_id AND p.document_id = v.document_id AND p.version < v.version AND p.state IS NOT NULL
		ORDER BY p.version DESC LIMIT 1)`, &source.Change, &source.Before)
	return source, err
}

// undoTarget is the state of a version that is to be undone.
type undoTarget struct {
	version int64
	exists  bool
	by      int64 // the version that undid it, or 0
}

// queueUndone reads it while the document is locked.
func queueUndone(b *pgx.Batch, ref Ref, u *undoTarget) {
	b.Queue(`SELECT coalesce(undone_by, 0) FROM versions WHERE workspace_id = @ws AND document_id = @id AND version = @version`,
		pg.Args{"ws": ref.Workspace, "id": ref.Document, "version": u.version}).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if u.exists = len(all) == 1; u.exists {
			u.by = all[0]
		}
		return err
	})
}

// CodeUndone is the code of the fault for a version that was undone before.
const CodeUndone = "ALREADY_UNDONE"

// ErrUndone returns the fault for a version that was undone by another one.
func ErrUndone(version, by int64) error {
	return fault.Coded(fault.Conflict, CodeUndone, "version %d was already undone by version %d; undo version %d to restore it", version, by, by)
}

// queueUndoneBy records that h, the new state, undoes the version.
func (u *undoTarget) queueUndoneBy(b *pgx.Batch, h *lockedDocument) error {
	switch {
	case !u.exists:
		return noVersion(Ref{h.Workspace, h.ID}, u.version)
	case u.by != 0:
		return ErrUndone(u.version, u.by)
	}
	b.Queue(`UPDATE versions SET undone_by = @by WHERE workspace_id = @ws AND document_id = @id AND version = @version`,
		pg.Args{"ws": h.Workspace, "id": h.ID, "version": u.version, "by": h.Sequence})
	return nil
}

// queueThin removes every second version of the older half, except the first, if the history is
// too large. Repeated, it keeps a history within any limit of at least three versions and those
// with labels, which stay.
func (s *Store) queueThin(b *pgx.Batch, h *lockedDocument) {
	b.Queue(`WITH ranked AS (
			SELECT version, row_number() OVER (ORDER BY version) AS n, count(*) OVER () AS total
			FROM versions WHERE workspace_id = @ws AND document_id = @id AND label = '' AND EXISTS (
				SELECT FROM documents WHERE workspace_id = @ws AND id = @id AND (versions > @versions OR version_bytes > @bytes))
		), thinned AS (
			DELETE FROM versions WHERE workspace_id = @ws AND document_id = @id
				AND version IN (SELECT version FROM ranked WHERE n <= total / 2 AND n % 2 = 0)
			RETURNING bytes
		)
		UPDATE documents SET versions = versions - (SELECT count(*) FROM thinned),
			version_bytes = version_bytes - (SELECT sum(bytes) FROM thinned)
		WHERE workspace_id = @ws AND id = @id AND EXISTS (SELECT FROM thinned)`,
		pg.Args{"ws": h.Workspace, "id": h.ID, "versions": s.limits.Versions, "bytes": s.limits.VersionBytes})
}
