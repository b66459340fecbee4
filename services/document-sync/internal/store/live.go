package store

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// A stretch of live editing by one author is one version, if it is not longer than
// this and nobody's operation came in between.
const stretch = 5 * time.Minute

// recentVersions is how many of the newest versions are looked at for the beginning of
// a stretch: those of others may be in between.
const recentVersions = 32

// live is a state in which there may be live edits that no version has.
type live struct {
	upTo     int64   // it has the updates up to this one
	state    []byte  // v2
	markdown *string // nil: content
}

// queueLive keeps a state as a version if people edited live up to it since the last
// version; its number, author and time are those of their last update. It takes the place
// of the last version of the same stretch.
//
// A rename says nothing about content, and an update that changes nothing is no edit. One
// that brings in a Seed is: the version of who wrote the text has no state.
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
