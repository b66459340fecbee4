package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Load returns the stored state of a document at one moment, or a NotFound fault.
func (s *Store) Load(ctx context.Context, ref Ref) (State, error) {
	st, err := s.since(ctx, ref, 0)
	if err != nil {
		return State{}, fmt.Errorf("load document %s: %w", ref.Document, err)
	}
	return st, nil
}

// Since returns what came after a sequence up to which the caller has everything, at one moment:
// the updates, or a snapshot and the updates after it if some were pruned. A deleted document is
// a NotFound fault.
func (s *Store) Since(ctx context.Context, ref Ref, after int64) (State, error) {
	st, err := s.since(ctx, ref, after)
	if err != nil {
		return State{}, fmt.Errorf("read new updates of document %s: %w", ref.Document, err)
	}
	return st, nil
}

// since is one statement, since a snapshot might be stored and updates pruned between two. Its
// first row is the document, the others are updates.
func (s *Store) since(ctx context.Context, ref Ref, after int64) (st State, err error) {
	found := false
	b := &pgx.Batch{}
	b.Queue(`
		SELECT `+columns+`, d.seed_before, CASE WHEN d.seed_before IS NOT NULL THEN d.content END,
			coalesce(s.sequence, 0), CASE WHEN s.sequence > @after THEN s.state END, NULL::bigint, NULL::bytea, NULL::uuid, NULL::uuid
		FROM `+documents+` LEFT JOIN snapshots s ON s.workspace_id = d.workspace_id AND s.document_id = d.id
		WHERE d.workspace_id = @ws AND d.id = @doc AND d.deleted_at IS NULL
		UNION ALL
		SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, u.sequence, u.data, u.member_id, u.run_id
		FROM updates u WHERE u.workspace_id = @ws AND u.document_id = @doc AND u.sequence > greatest(@after, (
			SELECT s.sequence FROM snapshots s WHERE s.workspace_id = @ws AND s.document_id = @doc))
		ORDER BY 15 NULLS FIRST`,
		pg.Args{"ws": ref.Workspace, "doc": ref.Document, "after": after}).Query(func(rows pgx.Rows) (err error) {
		st, found, err = collect(rows, after)
		return err
	})
	if err = s.read(ctx, ref, b); err == nil && !found {
		err = notFound(ref.Document)
	}
	return st, err
}

func collect(rows pgx.Rows, after int64) (st State, found bool, err error) {
	defer rows.Close()
	if !rows.Next() {
		return State{}, false, rows.Err()
	}
	var before, content *string
	if st.Document, err = row(&before, &content, &st.At, &st.Snapshot, nil, nil, nil, nil)(rows); err != nil {
		return State{}, false, err
	}
	if before != nil && content != nil {
		st.Seed = &Seed{Before: *before, After: *content}
	}
	var u Update
	var run uuid.NullUUID
	into := append(make([]any, 14), &u.Sequence, &u.Data, &u.Author.Member, &run)
	for rows.Next() {
		u.Data = nil
		if err := rows.Scan(into...); err != nil {
			return State{}, false, err
		}
		u.Author.Run = id.Run{UUID: run.UUID}
		st.Updates = append(st.Updates, u)
	}
	if err := rows.Err(); err != nil {
		return State{}, false, err
	}
	return st, true, st.place(after)
}

func (s *Store) read(ctx context.Context, ref Ref, b *pgx.Batch) error {
	return s.db.ReadInWorkspace(ctx, ref.Workspace, b)
}

// place sets the sequence that the updates follow, and verifies that they do without a gap: an
// incomplete document must never be taken for a complete one.
func (st *State) place(after int64) error {
	snapshot := st.At
	st.At = st.Document.Sequence - int64(len(st.Updates))
	for i, u := range st.Updates {
		if u.Sequence != st.At+1+int64(i) {
			return fmt.Errorf("the stored updates have a gap before %d", u.Sequence)
		}
	}
	// Before its first snapshot a document begins at any sequence.
	if known := max(snapshot, after); snapshot > 0 && st.At > known {
		return fmt.Errorf("the stored updates begin after %d, but only those up to %d are known", st.At, known)
	}
	return nil
}

// Seeded returns up to limit documents of any workspace with a seed, which loading applies.
func (s *Store) Seeded(ctx context.Context, limit int) (refs []Ref, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT workspace_id, id FROM documents WHERE seed_before IS NOT NULL LIMIT @limit`, pg.Args{"limit": limit}).Query(func(rows pgx.Rows) (err error) {
		refs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
		return err
	})
	// As the system: upgrades concern all workspaces.
	if err := s.db.ReadAsSystem(ctx, b); err != nil {
		return nil, fmt.Errorf("list documents with a seed: %w", err)
	}
	return refs, nil
}

// Heads returns the newest sequences of documents of any workspace, without deleted ones.
func (s *Store) Heads(ctx context.Context, refs []Ref) (map[Ref]int64, error) {
	workspaces, docs := columnsOf(refs)
	heads := make(map[Ref]int64, len(refs))
	b := &pgx.Batch{}
	b.Queue(`
		SELECT h.workspace_id, h.document_id, h.sequence FROM heads h
		JOIN unnest(@workspaces::uuid[], @documents::uuid[]) AS g (workspace_id, document_id) USING (workspace_id, document_id)`,
		pg.Args{"workspaces": workspaces, "documents": docs}).Query(func(rows pgx.Rows) error {
		var ref Ref
		var sequence int64
		_, err := pgx.ForEachRow(rows, []any{&ref.Workspace, &ref.Document, &sequence}, func() error {
			heads[ref] = sequence
			return nil
		})
		return err
	})
	// As the system: the open documents belong to many workspaces.
	if err := s.db.ReadAsSystem(ctx, b); err != nil {
		return nil, fmt.Errorf("read the newest sequences of %d documents: %w", len(refs), err)
	}
	return heads, nil
}

// columnsOf returns refs as two columns.
func columnsOf(refs []Ref) (workspaces, docs []pgtype.UUID) {
	workspaces, docs = make([]pgtype.UUID, len(refs)), make([]pgtype.UUID, len(refs))
	for i, r := range refs {
		workspaces[i], docs[i] = pgtype.UUID{Bytes: r.Workspace.UUID, Valid: true}, pgtype.UUID{Bytes: r.Document.UUID, Valid: true}
	}
	return workspaces, docs
}
