package store

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// maxQuarantined is the number of updates per document that are kept completely, and separately
// that of committed ones. Older committed ones keep only the update, of which there is no other
// copy, and not the state, which is as large as the document.
const maxQuarantined = 8

// Quarantined is an update that panicked twice, with what is needed to reproduce that: Updates are
// applied to State, and the last one panics, or all of them in one transaction.
type Quarantined struct {
	Ref      Ref
	Sequence int64    // State contains everything up to it
	State    []byte   // a Yjs update, v2; nil: an empty document
	Updates  [][]byte // Yjs updates, v1
	Author   Author   // of the last update
	Panic    string   // the value and the stack
	// Committed means that the last update was part of the document. Later snapshots lack
	// it, so this is its only copy, and is kept as long as the document.
	Committed bool
}

// Quarantine stores an update that must not be applied again. If it is stored already it only
// records that it was committed. It does nothing for a deleted document.
func (s *Store) Quarantine(ctx context.Context, q Quarantined) error {
	sum := sha256.Sum256(q.Updates[len(q.Updates)-1])
	if q.State == nil {
		q.State = []byte{}
	}
	args := pg.Args{
		"ws": q.Ref.Workspace, "id": q.Ref.Document, "sum": sum[:], "sequence": q.Sequence, "state": q.State, "updates": q.Updates,
		"member": q.Author.Member, "run": q.Author.run(), "panic": q.Panic, "most": maxQuarantined,
		"committed": q.Committed,
	}
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO quarantine (workspace_id, document_id, sum, sequence, state, updates, member_id, run_id, panic, committed, created_at)
		SELECT workspace_id, id, @sum, @sequence, @state, @updates, @member, @run, @panic, @committed, clock_timestamp() FROM documents
		WHERE workspace_id = @ws AND id = @id AND deleted_at IS NULL FOR SHARE
		ON CONFLICT (workspace_id, document_id, sum) DO UPDATE SET committed = true
		WHERE excluded.committed AND NOT quarantine.committed`, args) // the lock delays a deletion, which then removes this row
	b.Queue(`
		DELETE FROM quarantine WHERE workspace_id = @ws AND document_id = @id AND NOT committed AND sum NOT IN (
			SELECT sum FROM quarantine WHERE workspace_id = @ws AND document_id = @id AND NOT committed
			ORDER BY created_at DESC LIMIT @most)`, args)
	b.Queue(`
		UPDATE quarantine SET state = '', updates = updates[cardinality(updates):], panic = ''
		WHERE workspace_id = @ws AND document_id = @id AND committed AND panic <> '' AND sum NOT IN (
			SELECT sum FROM quarantine WHERE workspace_id = @ws AND document_id = @id AND committed
			ORDER BY created_at DESC LIMIT @most)`, args)
	if err := s.db.WriteInWorkspace(ctx, q.Ref.Workspace, b); err != nil {
		return fmt.Errorf("quarantine an update of document %s: %w", q.Ref.Document, err)
	}
	return nil
}
