package store

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// noChange is the update, v1, that leaves any state as it is.
var noChange = []byte{0, 0}

// held is a document whose row this transaction has locked, and its head too where the
// document moves on: as it is, and then as it will be.
type held struct {
	Document
	exists       bool
	derived      int64 // the sequence that content was derived of, 0 for none
	seeded       bool  // content holds what the state lacks, and must stay
	contentBytes int64
	versions     int
	versionBytes int64
	now          time.Time
}

// queueHold locks a document with its head, if it is there, and reads it into h.
func queueHold(b *pgx.Batch, ref Ref, h *held) {
	b.Queue(lockDocument, ref.Workspace, ref.Document)
	b.Queue(`select from heads where workspace_id = $1 and document_id = $2 for update`, ref.Workspace, ref.Document)
	queueRead(b, ref, h)
}

const lockDocument = `select from documents where workspace_id = $1 and id = $2 and deleted_at is null for update`

func queueRead(b *pgx.Batch, ref Ref, h *held) {
	// A statement of its own, which sees what those have done who had the locks.
	b.Queue(`
		select `+columns+`, d.content_sequence, d.seed_before is not null, octet_length(d.content), d.versions, d.version_bytes
		from `+documents+` where d.workspace_id = $1 and d.id = $2 and d.deleted_at is null`,
		ref.Workspace, ref.Document).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, row(&h.derived, &h.seeded, &h.contentBytes, &h.versions, &h.versionBytes))
		if h.exists = len(all) == 1; h.exists {
			h.Document = all[0]
		}
		return err
	})
}

// advance makes h the document after a change.
func (h *held) advance(author Author) {
	h.Sequence++
	h.touch(author, h.now)
}

// touch notes who changed the document last. The order of changes is the order of the
// list; a clock that was set back must not break it.
func (h *held) touch(author Author, at time.Time) {
	if earliest := h.UpdatedAt.Add(time.Microsecond); at.Before(earliest) {
		at = earliest
	}
	h.Author, h.UpdatedAt = author, at
}

// queueUpdate puts an update behind the others: it is that of h's sequence.
func queueUpdate(b *pgx.Batch, h *held, author Author, update []byte) {
	b.Queue(`
		with head as (
			update heads set sequence = @sequence where workspace_id = @ws and document_id = @id
		)
		insert into updates (workspace_id, document_id, sequence, data, member_id, run_id, created_at)
		values (@ws, @id, @sequence, @data, @by, @run, now())`,
		pg.Args{"ws": h.Workspace, "id": h.ID, "sequence": h.Sequence, "data": update, "by": author.Member, "run": author.run()})
}

// entry is a version that is to be written.
type entry struct {
	sequence  int64
	operation string // empty: no version is written
	author    Author
	at        time.Time
	began     *time.Time // of live editing
	state     []byte     // nil: that of the snapshot, if content is of the same moment
	markdown  *string    // nil: content
}

// queueWrite writes h, with the entry's Markdown as its content, and the entry.
func (s *Store) queueWrite(b *pgx.Batch, h *held, e entry) {
	args := pg.Args{
		"ws": h.Workspace, "id": h.ID, "name": h.Name, "sequence": e.sequence,
		"by": h.Author.Member, "run": h.Author.run(), "at": h.UpdatedAt, "derived": h.derived, "seeded": h.seeded,
		"keep": e.operation != "", "operation": e.operation, "member": e.author.Member, "member_run": e.author.run(),
		"created": e.at, "began": e.began, "state": e.state, "markdown": e.markdown,
	}
	// An entry may be there already: the previous version of the program, which does not
	// know of updates, may have taken the number of one.
	b.Queue(`
		with kept as (
			insert into versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, state, bytes, created_at, began_at)
			select @ws, @id, @sequence, @member, @member_run, @operation, @name, v.content, v.state,
				octet_length(v.content) + coalesce(octet_length(v.state), 0), @created, @began
			from (
				select coalesce(@markdown::text, d.content) as content, coalesce(@state::bytea, (
					select s.state from snapshots s
					where s.workspace_id = @ws and s.document_id = @id and s.sequence = d.content_sequence)) as state
				from documents d where d.workspace_id = @ws and d.id = @id and @keep
			) v
			on conflict do nothing
			returning bytes
		)
		update documents set name = @name, sequence = greatest(sequence, @sequence), writes = writes + 1,
			updated_by = @by, updated_run = @run, updated_at = @at,
			content = case when @seeded then content else coalesce(@markdown::text, content) end,
			content_sequence = case when @seeded then content_sequence else @derived end,
			versions = versions + (select count(*) from kept),
			version_bytes = version_bytes + (select coalesce(sum(bytes), 0) from kept)
		where workspace_id = @ws and id = @id`, args)
	if e.operation == "" {
		return
	}
	size := h.contentBytes
	if e.markdown != nil {
		size = int64(len(*e.markdown))
	}
	if h.versions+1 > s.limits.Versions || h.versionBytes+size+int64(len(e.state)) > s.limits.VersionBytes {
		queueThin(b, h.Workspace, h.ID)
	}
}
