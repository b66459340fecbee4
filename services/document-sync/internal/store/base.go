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
	look := &pgx.Batch{}
	look.Queue(`select exists (select from bases where workspace_id = $1 and document_id = $2 and sequence = $3)`,
		ref.Workspace, ref.Document, sequence).QueryRow(func(r pgx.Row) error { return r.Scan(&kept) })
	err := s.db.ChangeInWorkspace(ctx, ref.Workspace, look, func(b *pgx.Batch) error {
		if kept {
			return nil // nothing is queued
		}
		args := pg.Args{
			"ws": ref.Workspace, "id": ref.Document, "sequence": sequence, "markdown": markdown, "most": maxBases, "bytes": maxBaseBytes,
		}
		b.Queue(`
			insert into bases (workspace_id, document_id, sequence, content, created_at)
			select workspace_id, id, @sequence, @markdown, now() from documents
			where workspace_id = @ws and id = @id and deleted_at is null for share
on conflict do nothing`, args) // the lock delays a deletion, which then removes this row
		b.Queue(`
			delete from bases where workspace_id = @ws and document_id = @id and sequence in (
				select sequence from (
					select sequence, row_number() over newest as nth, sum(octet_length(content)) over newest as bytes
					from bases where workspace_id = @ws and document_id = @id
					window newest as (order by sequence desc)
				) r where nth > @most or nth > 1 and bytes > @bytes)`, args)
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
		select content, null::bytea, 1 as place from bases where workspace_id = @ws and document_id = @id and sequence = @sequence
		union all
		select content, state, 2 from versions
		where workspace_id = @ws and document_id = @id and version = @sequence and operation not in (@write, @rename)
		order by place limit 1`,
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
