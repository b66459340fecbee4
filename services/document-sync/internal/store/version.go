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
}

// Old is a version with its content.
type Old struct {
	Version
	Markdown string
	State    []byte // v2; nil where only Markdown was kept
}

const versionColumns = `version, member_id, run_id, operation, name, created_at`

func version(rest ...any) func(pgx.CollectableRow) (Version, error) {
	return func(r pgx.CollectableRow) (Version, error) {
		var v Version
		var run uuid.NullUUID
		err := r.Scan(append([]any{&v.Version, &v.Author.Member, &run, &v.Operation, &v.Name, &v.CreatedAt}, rest...)...)
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
		err = fault.New(fault.NotFound, "document %s has no version %d", ref.Document, number)
	}
	if err != nil {
		return Old{}, fmt.Errorf("read version %d: %w", number, err)
	}
	return old, nil
}

// queueThin removes every second version of the older half, but never the first:
// what is long ago is remembered coarsely. Repeated, it keeps a history within
// any limit, as long as that holds three versions.
func queueThin(b *pgx.Batch, ws id.Workspace, doc id.Document) {
	b.Queue(`with ranked as (
			select version, row_number() over (order by version) as n, count(*) over () as total
			from versions where workspace_id = $1 and document_id = $2
		), thinned as (
			delete from versions where workspace_id = $1 and document_id = $2
				and version in (select version from ranked where n <= total / 2 and n % 2 = 0)
			returning bytes
		)
		update documents set versions = versions - (select count(*) from thinned),
			version_bytes = version_bytes - (select coalesce(sum(bytes), 0) from thinned)
		where workspace_id = $1 and id = $2`, ws, doc)
}
