package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Version is an entry of a document's history, without its content.
type Version struct {
	Version   int64
	Author    Author
	Operation string
	Name      string
	CreatedAt time.Time
	// Undoes is the version that an undo took back, and UndoneBy the one that took this
	// one back; 0 for none.
	Undoes, UndoneBy int64
	// Undoable says that it is an operation that nobody has undone, and that it is
	// known what it did.
	Undoable bool
}

// Old is a version with its content.
type Old struct {
	Version
	Markdown string
	State    []byte // v2; nil where only Markdown was kept
}

const versionColumns = `version, member_id, run_id, operation, name, created_at,
	coalesce(undoes, 0), coalesce(undone_by, 0), change is not null and undone_by is null`

func version(rest ...any) func(pgx.CollectableRow) (Version, error) {
	return func(r pgx.CollectableRow) (Version, error) {
		var v Version
		var run uuid.NullUUID
		err := r.Scan(append([]any{&v.Version, &v.Author.Member, &run, &v.Operation, &v.Name, &v.CreatedAt, &v.Undoes, &v.UndoneBy, &v.Undoable}, rest...)...)
		v.Author.Run = id.Run{UUID: run.UUID}
		return v, err
	}
}

// Versions returns up to limit entries below before (0: from the newest on),
// newest first, or a NotFound fault.
func (s *Store) Versions(ctx context.Context, ws id.Workspace, doc id.Document, before int64, limit int) ([]Version, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	var out []Version
	var exists bool // a deleted document has no versions left
	b := &pgx.Batch{}
	b.Queue(`select `+versionColumns+` from versions
		where workspace_id = $1 and document_id = $2 and version < $3 order by version desc limit $4`, ws, doc, before, limit).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, version())
		return err
	})
	b.Queue(`select exists (select from documents where workspace_id = $1 and id = $2 and deleted_at is null)`, ws, doc).QueryRow(func(r pgx.Row) error {
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

// Version returns an old version, or a NotFound fault.
func (s *Store) Version(ctx context.Context, ref Ref, number int64) (Old, error) {
	var old Old
	b := &pgx.Batch{}
	b.Queue(`select `+versionColumns+`, content, state from versions where workspace_id = $1 and document_id = $2 and version = $3`,
		ref.Workspace, ref.Document, number).Query(func(rows pgx.Rows) (err error) {
		old.Version, err = pgx.CollectExactlyOneRow(rows, version(&old.Markdown, &old.State))
		return err
	})
	err := s.read(ctx, ref, b)
	if pg.NoRows(err) {
		err = noVersion(ref, number)
	}
	if err != nil {
		return Old{}, fmt.Errorf("read version %d: %w", number, err)
	}
	return old, nil
}

func noVersion(ref Ref, number int64) error {
	return fault.New(fault.NotFound, "document %s has no version %d: history is thinned out as it gets older; look at its versions, and restore one of them", ref.Document, number)
}

// Done is what is known of a version that is to be taken back.
type Done struct {
	Version
	Change []byte // what it did: a Yjs update, v1; nil where that is not known
	// Before is the state of the version before it, v2, which has what it deleted unless
	// versions in between were thinned out; nil if there is none.
	Before []byte
}

// Done returns a version with what is needed to take it back, or a NotFound fault.
func (s *Store) Done(ctx context.Context, ref Ref, number int64) (Done, error) {
	var done Done
	b := &pgx.Batch{}
	b.Queue(`select `+versionColumns+`, change, (
			select p.state from versions p
			where p.workspace_id = v.workspace_id and p.document_id = v.document_id and p.version < v.version and p.state is not null
			order by p.version desc limit 1)
		from versions v where workspace_id = $1 and document_id = $2 and version = $3`,
		ref.Workspace, ref.Document, number).Query(func(rows pgx.Rows) (err error) {
		done.Version, err = pgx.CollectExactlyOneRow(rows, version(&done.Change, &done.Before))
		return err
	})
	err := s.read(ctx, ref, b)
	if pg.NoRows(err) {
		err = noVersion(ref, number)
	}
	if err != nil {
		return Done{}, fmt.Errorf("read what version %d did: %w", number, err)
	}
	return done, nil
}

// undone is a version that an undo is to take back.
type undone struct {
	version int64
	exists  bool
	by      int64 // the version that has done so already, or 0
}

// queueUndone reads it; the document is locked.
func queueUndone(b *pgx.Batch, ref Ref, u *undone) {
	b.Queue(`select coalesce(undone_by, 0) from versions where workspace_id = $1 and document_id = $2 and version = $3`,
		ref.Workspace, ref.Document, u.version).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if u.exists = len(all) == 1; u.exists {
			u.by = all[0]
		}
		return err
	})
}

// CodeUndone is the code of the fault for a version that was undone before.
const CodeUndone = "ALREADY_UNDONE"

// ErrUndone returns the fault for a version that another one has taken back.
func ErrUndone(version, by int64) error {
	return fault.Coded(fault.Conflict, CodeUndone, "version %d was undone already, by version %d; undo version %d to have it again", version, by, by)
}

// queueMark notes that h, as it will be, takes a version back.
func (u *undone) queueMark(b *pgx.Batch, h *held) error {
	switch {
	case !u.exists:
		return noVersion(Ref{h.Workspace, h.ID}, u.version)
	case u.by != 0:
		return ErrUndone(u.version, u.by)
	}
	b.Queue(`update versions set undone_by = $4 where workspace_id = $1 and document_id = $2 and version = $3`,
		h.Workspace, h.ID, u.version, h.Sequence)
	return nil
}

// queueThin removes every second version of the older half, but never the first, when
// there is too much history: what is long ago is remembered coarsely. Repeated, it
// keeps a history within any limit, as long as that holds three versions.
func (s *Store) queueThin(b *pgx.Batch, h *held) {
	b.Queue(`with ranked as (
			select version, row_number() over (order by version) as n, count(*) over () as total
			from versions where workspace_id = $1 and document_id = $2 and exists (
				select from documents where workspace_id = $1 and id = $2 and (versions > $3 or version_bytes > $4))
		), thinned as (
			delete from versions where workspace_id = $1 and document_id = $2
				and version in (select version from ranked where n <= total / 2 and n % 2 = 0)
			returning bytes
		)
		update documents set versions = versions - (select count(*) from thinned),
			version_bytes = version_bytes - (select sum(bytes) from thinned)
		where workspace_id = $1 and id = $2 and exists (select from thinned)`, h.Workspace, h.ID, s.limits.Versions, s.limits.VersionBytes)
}
