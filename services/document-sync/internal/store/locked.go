package store

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// noChange is the v1 update without effect.
var noChange = []byte{0, 0}

// lockedDocument is a document whose row, and head if it advances, are locked by this transaction: its
// current state and then the new one.
type lockedDocument struct {
	Document
	exists     bool
	derived    int64 // the sequence that content was derived from; 0 for none
	seeded     bool  // content has text that the state lacks, and must stay
	now        time.Time
	exact      bool        // nothing else was committed since the change was computed
	undoTarget *undoTarget // the version to be undone
}

// queueLock locks a document, if it exists, with its head, and reads it into h.
func queueLock(b *pgx.Batch, ref Ref, h *lockedDocument) {
	b.Queue(lockDocument, ref.args())
	b.Queue(`SELECT FROM heads WHERE workspace_id = @ws AND document_id = @id FOR UPDATE`, ref.args())
	queueRead(b, ref, h)
}

const lockDocument = `SELECT FROM documents WHERE workspace_id = @ws AND id = @id AND deleted_at IS NULL FOR UPDATE`

func queueRead(b *pgx.Batch, ref Ref, h *lockedDocument) {
	// A separate statement, which sees the changes of previous lock holders.
	b.Queue(`
		SELECT `+columns+`, d.content_sequence, d.seed_before IS NOT NULL
		FROM `+documents+` WHERE d.workspace_id = @ws AND d.id = @id AND d.deleted_at IS NULL`, ref.args()).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, row(&h.derived, &h.seeded))
		if h.exists = len(all) == 1; h.exists {
			h.Document = all[0]
		}
		return err
	})
}

// advance makes h the document after a change. Documents are listed in the order of their
// changes, so the time must increase even if the clock was set back.
func (h *lockedDocument) advance(author Author) {
	at := h.now
	if earliest := h.UpdatedAt.Add(time.Microsecond); at.Before(earliest) {
		at = earliest
	}
	h.Sequence, h.Author, h.UpdatedAt = h.Sequence+1, author, at
}

// queueUpdate appends an update with h's sequence.
func queueUpdate(b *pgx.Batch, h *lockedDocument, author Author, update []byte) {
	b.Queue(`
		WITH head AS (
			UPDATE heads SET sequence = @sequence WHERE workspace_id = @ws AND document_id = @id
		)
		INSERT INTO updates (workspace_id, document_id, sequence, data, member_id, run_id, created_at)
		VALUES (@ws, @id, @sequence, @data, @by, @run, now())`,
		pg.Args{"ws": h.Workspace, "id": h.ID, "sequence": h.Sequence, "data": update, "by": author.Member, "run": author.run()})
}

// entry is the version made by an operation.
type entry struct {
	operation string
	change    []byte  // v1; nil if it cannot be undone
	state     []byte  // nil: that of the snapshot, if it belongs to the content
	markdown  *string // nil: the current content
	undoes    int64   // the version that it undoes, or 0
}

// queueWrite writes h, with the entry's Markdown as its content, and the entry.
func (s *Store) queueWrite(b *pgx.Batch, h *lockedDocument, e entry) {
	args := pg.Args{
		"ws": h.Workspace, "id": h.ID, "name": h.Name, "sequence": h.Sequence,
		"by": h.Author.Member, "run": h.Author.run(), "at": h.UpdatedAt, "derived": h.derived, "seeded": h.seeded,
		"operation": e.operation, "change": e.change, "state": e.state, "markdown": e.markdown, "undoes": e.undoes,
	}
	// An entry may exist: the previous release, which does not know of updates, may have used
	// its number.
	b.Queue(`
		WITH kept AS (
			INSERT INTO versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, state, change, undoes, bytes, created_at)
			SELECT @ws, @id, @sequence, @by, @run, @operation, @name, v.content, v.state, @change, nullif(@undoes::bigint, 0),
				octet_length(v.content) + coalesce(octet_length(v.state), 0) + coalesce(octet_length(@change::bytea), 0), @at
			FROM (
				SELECT coalesce(@markdown::text, d.content) AS content, coalesce(@state::bytea, (
					SELECT s.state FROM snapshots s
					WHERE s.workspace_id = @ws AND s.document_id = @id AND s.sequence = d.content_sequence)) AS state
				FROM documents d WHERE d.workspace_id = @ws AND d.id = @id
			) v
			ON CONFLICT DO NOTHING
			RETURNING bytes
		)
		UPDATE documents SET name = @name, sequence = greatest(sequence, @sequence), writes = writes + 1,
			updated_by = @by, updated_run = @run, updated_at = @at,
			content = CASE WHEN @seeded THEN content ELSE coalesce(@markdown::text, content) END,
			content_sequence = CASE WHEN @seeded THEN content_sequence ELSE @derived END,
			versions = versions + (SELECT count(*) FROM kept),
			version_bytes = version_bytes + (SELECT coalesce(sum(bytes), 0) FROM kept)
		WHERE workspace_id = @ws AND id = @id`, args)
	s.queueThin(b, h)
}
