package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// Save stores a snapshot and prunes the updates in it. It does nothing if there is one with the
// same or a newer sequence: several instances may save a document. Live edits since the last
// version become a version, which replaces the previous one of the same stretch, unless people
// are still typing. A deleted document is a NotFound fault, an oversized state TooLarge.
func (s *Store) Save(ctx context.Context, snap Snapshot) error {
	if err := s.save(ctx, snap); err != nil {
		return fmt.Errorf("save document %s: %w", snap.Ref.Document, err)
	}
	return nil
}

func (s *Store) save(ctx context.Context, snap Snapshot) error {
	switch n := len(snap.State); {
	case n == 0:
		return errors.New("the snapshot has no state")
	case n > s.limits.StateBytes:
		return s.tooLarge(n)
	}
	var h lockedDocument
	var stored int64
	reads := &pgx.Batch{}
	// The head is not locked: it may advance meanwhile.
	reads.Queue(lockDocument, snap.Ref.args())
	queueRead(reads, snap.Ref, &h)
	reads.Queue(`
		SELECT clock_timestamp(), coalesce(s.sequence, 0) FROM (VALUES (1)) v
		LEFT JOIN snapshots s ON s.workspace_id = @ws AND s.document_id = @id`, snap.Ref.args()).QueryRow(func(r pgx.Row) error { return r.Scan(&h.now, &stored) })
	return s.db.ChangeInWorkspace(ctx, snap.Ref.Workspace, reads, func(b *pgx.Batch) error {
		switch {
		case !h.exists:
			return notFound(snap.Ref.Document)
		case snap.Sequence > h.Sequence:
			return fmt.Errorf("the snapshot has sequence %d, but the document only %d", snap.Sequence, h.Sequence)
		case snap.Sequence <= stored:
			return nil // nothing is queued
		}
		l := live{upTo: snap.Sequence, state: snap.State}
		if !snap.Unrendered {
			l.markdown = &snap.Markdown
		}
		if !snap.Typing {
			s.queueLive(b, &h, l) // before its updates are pruned
		}
		queueSnapshot(b, snap)
		queueContent(b, &h, snap)
		return nil
	})
}

// queueContent writes the content derived from a snapshot.
func queueContent(b *pgx.Batch, h *lockedDocument, snap Snapshot) {
	derive := !snap.Unrendered && !h.seeded
	b.Queue(`
		UPDATE documents SET sequence = greatest(sequence, @sequence), writes = writes + 1,
			content = CASE WHEN @derive THEN @markdown ELSE content END,
			content_sequence = CASE WHEN @derive THEN @sequence ELSE content_sequence END
		WHERE workspace_id = @ws AND id = @id`,
		pg.Args{"ws": h.Workspace, "id": h.ID, "sequence": snap.Sequence, "derive": derive, "markdown": snap.Markdown})
}

func queueSnapshot(b *pgx.Batch, snap Snapshot) {
	args := pg.Args{
		"ws": snap.Ref.Workspace, "id": snap.Ref.Document, "sequence": snap.Sequence, "state": snap.State, "vector": snap.Vector,
		"text": snap.Text, "unrendered": snap.Unrendered, "typing": snap.Typing, "no_change": noChange,
	}
	b.Queue(`
		INSERT INTO snapshots (workspace_id, document_id, sequence, state, vector, text, created_at)
		VALUES (@ws, @id, @sequence, @state, @vector, @text, now())
		ON CONFLICT (workspace_id, document_id) DO UPDATE SET sequence = excluded.sequence, state = excluded.state, vector = excluded.vector,
			text = CASE WHEN @unrendered THEN snapshots.text ELSE excluded.text END, created_at = excluded.created_at`, args)
	// The last edit is kept: it has the author of the next version.
	b.Queue(`
		DELETE FROM updates WHERE workspace_id = @ws AND document_id = @id AND sequence <= @sequence
			AND (NOT @typing OR sequence < (SELECT max(sequence) FROM updates
				WHERE workspace_id = @ws AND document_id = @id AND sequence <= @sequence AND data <> @no_change))`, args)
}

// ApplySeed commits the update that applies a document's seed to its state, and returns its
// sequence. applied is false if another instance applied the seed or it has changed: the caller then
// reads the document again (Since). update may be empty.
func (s *Store) ApplySeed(ctx context.Context, ref Ref, seed Seed, update []byte) (sequence int64, applied bool, err error) {
	if len(update) > s.limits.StateBytes {
		return 0, false, s.tooLarge(len(update))
	}
	if len(update) == 0 {
		update = noChange
	}
	before, after := sha256.Sum256([]byte(seed.Before)), sha256.Sum256([]byte(seed.After))
	var h lockedDocument
	reads := &pgx.Batch{}
	queueLock(reads, ref, &h)
	reads.Queue(`
		SELECT FROM documents WHERE workspace_id = @ws AND id = @id AND seed_before IS NOT NULL
			AND sha256(convert_to(seed_before, 'UTF8')) = @before AND sha256(convert_to(content, 'UTF8')) = @after`,
		pg.Args{"ws": ref.Workspace, "id": ref.Document, "before": before[:], "after": after[:]}).Query(func(rows pgx.Rows) error {
		applied = rows.Next()
		return rows.Err()
	})
	err = s.db.ChangeInWorkspace(ctx, ref.Workspace, reads, func(b *pgx.Batch) error {
		if !h.exists {
			return notFound(ref.Document)
		}
		if !applied {
			return nil // nothing is queued
		}
		h.Sequence++
		queueUpdate(b, &h, h.Author, update) // by the author of the seed
		b.Queue(`UPDATE documents SET seed_before = NULL, writes = writes + 1, sequence = greatest(sequence, @sequence) WHERE workspace_id = @ws AND id = @id`,
			pg.Args{"ws": ref.Workspace, "id": ref.Document, "sequence": h.Sequence})
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("apply the seed of document %s: %w", ref.Document, err)
	}
	if !applied {
		return 0, false, nil
	}
	return h.Sequence, true, nil
}
