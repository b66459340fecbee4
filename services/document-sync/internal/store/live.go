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
func (s *Store) queueLive(b *pgx.Batch, h *lockedDocument, l live) {
	b.Queue(`
		WITH recent AS MATERIALIZED (
			SELECT version, operation, member_id, run_id, bytes, began_at FROM versions
			WHERE workspace_id = @ws AND document_id = @id AND version <= @up_to AND operation <> @rename
			ORDER BY version DESC LIMIT @recent
		), edit AS MATERIALIZED (
			SELECT sequence, member_id, run_id, created_at FROM updates
			WHERE workspace_id = @ws AND document_id = @id AND sequence <= @up_to AND data <> @no_change
				AND sequence > (SELECT coalesce(max(version), 0) FROM recent)
			ORDER BY sequence DESC LIMIT 1
		), begun AS MATERIALIZED (
			SELECT r.version, r.bytes, r.began_at FROM recent r, edit e
			WHERE r.operation = @write AND r.member_id = e.member_id AND r.run_id IS NOT DISTINCT FROM e.run_id
				AND r.began_at > e.created_at - make_interval(secs => @stretch)
				AND r.version > (SELECT coalesce(max(version), 0) FROM recent WHERE operation <> @write)
			ORDER BY r.version DESC LIMIT 1
		), gone AS (
			DELETE FROM versions WHERE workspace_id = @ws AND document_id = @id AND version IN (SELECT version FROM begun)
			RETURNING bytes
		), kept AS (
			INSERT INTO versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, state, bytes, created_at, began_at)
			SELECT @ws, @id, e.sequence, e.member_id, e.run_id, @write, @name, v.content, @state,
				octet_length(v.content) + octet_length(@state::bytea), e.created_at, coalesce((SELECT began_at FROM begun), e.created_at)
			FROM edit e, (
				SELECT coalesce(@markdown::text, content) AS content FROM documents WHERE workspace_id = @ws AND id = @id
			) v
			ON CONFLICT DO NOTHING
			RETURNING bytes
		)
		UPDATE documents d SET updated_by = e.member_id, updated_run = e.run_id, updated_at = greatest(d.updated_at + INTERVAL '1 microsecond', @now),
			versions = d.versions + (SELECT count(*) FROM kept) - (SELECT count(*) FROM gone),
			version_bytes = d.version_bytes + (SELECT coalesce(sum(bytes), 0) FROM kept) - (SELECT coalesce(sum(bytes), 0) FROM gone)
		FROM edit e WHERE d.workspace_id = @ws AND d.id = @id`,
		pg.Args{
			"ws": h.Workspace, "id": h.ID, "name": h.Name, "now": h.now, "up_to": l.upTo, "state": l.state, "markdown": l.markdown,
			"write": Write, "rename": Rename, "no_change": noChange, "recent": recentVersions, "stretch": stretch.Seconds(),
		})
	s.queueThin(b, h)
}
