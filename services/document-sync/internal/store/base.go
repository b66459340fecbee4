package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
)

// How many bases of a document are kept: the newest, and more while they are small.
const (
	maxBases     = 64
	maxBaseBytes = 16 << 20
)

// KeepBase keeps what somebody has read of a document: its Markdown at a sequence. It does
// nothing if that is kept already or the document was deleted.
func (s *Store) KeepBase(ctx context.Context, ref Ref, sequence int64, markdown string) error {
	var kept bool
	reads := &pgx.Batch{}
	args := pg.Args{
		"ws": ref.Workspace, "id": ref.Document, "sequence": sequence, "markdown": markdown, "most": maxBases, "bytes": maxBaseBytes,
	}
	reads.Queue(`SELECT EXISTS (SELECT FROM bases WHERE workspace_id = @ws AND document_id = @id AND sequence = @sequence)`,
		args).QueryRow(func(r pgx.Row) error { return r.Scan(&kept) })
	err := s.db.ChangeInWorkspace(ctx, ref.Workspace, reads, func(b *pgx.Batch) error {
		if kept {
			return nil // nothing is queued
		}
		b.Queue(`
			INSERT INTO bases (workspace_id, document_id, sequence, content, created_at)
			SELECT workspace_id, id, @sequence, @markdown, now() FROM documents
			WHERE workspace_id = @ws AND id = @id AND deleted_at IS NULL FOR SHARE
			ON CONFLICT DO NOTHING`, args) // the lock delays a deletion, which then removes this row
		b.Queue(`
			DELETE FROM bases WHERE workspace_id = @ws AND document_id = @id AND sequence IN (
				SELECT sequence FROM (
					SELECT sequence, row_number() OVER newest AS nth, sum(octet_length(content)) OVER newest AS bytes
					FROM bases WHERE workspace_id = @ws AND document_id = @id
					WINDOW newest AS (ORDER BY sequence DESC)
				) r WHERE nth > @most OR nth > 1 AND bytes > @bytes)`, args)
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep what was read of document %s: %w", ref.Document, err)
	}
	return nil
}

// CodeBaseGone is the code of the fault for an unknown base.
const CodeBaseGone = "BASE_GONE"

// Base returns the content of a document at a sequence: what somebody read then, or the result
// of an operation. If neither is kept it returns a Conflict fault with CodeBaseGone.
func (s *Store) Base(ctx context.Context, ref Ref, sequence int64) (Old, error) {
	var all []Old
	b := &pgx.Batch{}
	// A version of live editing may be replaced later, and a rename's may have older content.
	b.Queue(`
		SELECT content, NULL::bytea, 1 AS place FROM bases WHERE workspace_id = @ws AND document_id = @id AND sequence = @sequence
		UNION ALL
		SELECT content, state, 2 FROM versions
		WHERE workspace_id = @ws AND document_id = @id AND version = @sequence AND operation NOT IN (@write, @rename)
		ORDER BY place LIMIT 1`,
		pg.Args{"ws": ref.Workspace, "id": ref.Document, "sequence": sequence, "write": Write, "rename": Rename}).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (old Old, err error) {
			return old, r.Scan(&old.Markdown, &old.State, nil)
		})
		return err
	})
	if err := s.read(ctx, ref, b); err != nil {
		return Old{}, fmt.Errorf("read the base of document %s at %d: %w", ref.Document, sequence, err)
	}
	if len(all) == 0 {
		return Old{}, fault.Coded(fault.Conflict, CodeBaseGone,
			"base: the content at sequence %d is no longer known: read the document again, and apply the change to that", sequence)
	}
	return all[0], nil
}

// Precondition returns the fault for a document that is not at an operation's IfSequence. The
// operation checks it again: this check only avoids useless work.
func (s *Store) Precondition(ctx context.Context, op Operation) error {
	if op.IfSequence == 0 {
		return nil
	}
	d, err := s.Get(ctx, op.Workspace, op.Document)
	if err == nil && d.Sequence != op.IfSequence {
		err = errStale(d.Sequence)
	}
	return err
}

// errStale returns the fault for a document at another sequence than required.
func errStale(is int64) error {
	return fault.Coded(fault.Conflict, fault.CodePrecondition,
		"the document has changed: it is at sequence %d now; read it again", is)
}
