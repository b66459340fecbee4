package store

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// A stretch of live editing by one author is one version, unless it is longer than this or
// interrupted by an operation.
const stretch = 5 * time.Minute

// recentVersions is the number of versions searched for the beginning of a stretch: other
// authors' versions may be in between.
const recentVersions = 32

// live is a state that may contain live edits without a version.
type live struct {
	upTo     int64   // it contains the updates up to here
	state    []byte  // v2
	markdown *string // nil: the current content
}

// queueLive keeps a state as a version if it contains live edits since the last version. The
// number, author and time of the version are those of the last edit. It replaces the previous
// version of the same stretch.
//
// Renames do not change the content, and updates without effect are not edits. An update that
// applies a Seed is one: the version of the text's author has no state.
func (s *Store) queueLive(b *pgx.Batch, h *held, l live) {
	b.Queue(`
		with recent as materialized (
			select version, operation, member_id, run_id, bytes, began_at from versions
			where workspace_id = @ws and document_id = @id and version <= @up_to and operation <> @rename
			order by version desc limit @recent
		), edit as materialized (
			select sequence, member_id, run_id, created_at from updates
			where workspace_id = @ws and document_id = @id and sequence <= @up_to and data <> @no_change
				and sequence > (select coalesce(max(version), 0) from recent)
			order by sequence desc limit 1
		), begun as materialized (
			select r.version, r.bytes, r.began_at from recent r, edit e
			where r.operation = @write and r.member_id = e.member_id and r.run_id is not distinct from e.run_id
				and r.began_at > e.created_at - make_interval(secs => @stretch)
				and r.version > (select coalesce(max(version), 0) from recent where operation <> @write)
			order by r.version desc limit 1
		), gone as (
			delete from versions where workspace_id = @ws and document_id = @id and version in (select version from begun)
			returning bytes
		), kept as (
			insert into versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, state, bytes, created_at, began_at)
			select @ws, @id, e.sequence, e.member_id, e.run_id, @write, @name, v.content, @state,
				octet_length(v.content) + octet_length(@state::bytea), e.created_at, coalesce((select began_at from begun), e.created_at)
			from edit e, (
				select coalesce(@markdown::text, content) as content from documents where workspace_id = @ws and id = @id
			) v
			on conflict do nothing
			returning bytes
		)
		update documents d set updated_by = e.member_id, updated_run = e.run_id, updated_at = greatest(d.updated_at + interval '1 microsecond', @now),
			versions = d.versions + (select count(*) from kept) - (select count(*) from gone),
			version_bytes = d.version_bytes + (select coalesce(sum(bytes), 0) from kept) - (select coalesce(sum(bytes), 0) from gone)
		from edit e where d.workspace_id = @ws and d.id = @id`,
		pg.Args{
			"ws": h.Workspace, "id": h.ID, "name": h.Name, "now": h.now, "up_to": l.upTo, "state": l.state, "markdown": l.markdown,
			"write": Write, "rename": Rename, "no_change": noChange, "recent": recentVersions, "stretch": stretch.Seconds(),
		})
	s.queueThin(b, h)
}
