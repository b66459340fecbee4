package store

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// maxQuarantined is how many updates of a document are kept in quarantine, the newest, and as
// many that were committed. Older ones of those keep the update alone, which has no other copy,
// and not what it takes to see the panic again: a state is as large as the document.
const maxQuarantined = 8

// Quarantined is an update that made the program panic twice, with what it takes to see
// that again: Updates are applied to State, and the last one is to blame, or all of them
// together in one transaction.
type Quarantined struct {
	Ref      Ref
	Sequence int64    // everything up to it is in State
	State    []byte   // a Yjs update, v2; nil: an empty document
	Updates  [][]byte // Yjs updates, v1
	Author   Author   // of the last one
	Panic    string   // value and stack
	// Committed says that the last update was one of the document's, which the next snapshot
	// does not have: this is its only copy then, and the update stays as long as the document.
	Committed bool
}

// Quarantine keeps an update that is not to be applied again. When the same is kept
// already it only notes that it was committed, if so; it does nothing when the document
// was deleted.
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
		insert into quarantine (workspace_id, document_id, sum, sequence, state, updates, member_id, run_id, panic, committed, created_at)
		select workspace_id, id, @sum, @sequence, @state, @updates, @member, @run, @panic, @committed, clock_timestamp() from documents
		where workspace_id = @ws and id = @id and deleted_at is null for share
		on conflict (workspace_id, document_id, sum) do update set committed = true
		where excluded.committed and not quarantine.committed`, args) // the lock makes a deletion wait, which takes the row with it
	b.Queue(`
		delete from quarantine where workspace_id = @ws and document_id = @id and not committed and sum not in (
			select sum from quarantine where workspace_id = @ws and document_id = @id and not committed
			order by created_at desc limit @most)`, args)
	b.Queue(`
		update quarantine set state = '', updates = updates[cardinality(updates):], panic = ''
		where workspace_id = @ws and document_id = @id and committed and panic <> '' and sum not in (
			select sum from quarantine where workspace_id = @ws and document_id = @id and committed
			order by created_at desc limit @most)`, args)
	if err := s.db.WriteInWorkspace(ctx, q.Ref.Workspace, b); err != nil {
		return fmt.Errorf("quarantine an update of document %s: %w", q.Ref.Document, err)
	}
	return nil
}
