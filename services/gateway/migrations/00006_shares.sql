-- +goose Up

-- Links with which anybody can read a document. A link works only as long as its creator may
-- write in the workspace. The audit tells who made and revoked them.
CREATE TABLE shares (
	workspace_id uuid        NOT NULL,
	share_id     uuid        NOT NULL,
	hash         bytea       NOT NULL UNIQUE CHECK (length(hash) = 32),
	document_id  uuid        NOT NULL,
	created_by   uuid        NOT NULL,
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	expires_at   timestamptz,
	PRIMARY KEY (workspace_id, share_id)
);
CREATE INDEX shares_by_document ON shares (workspace_id, document_id, created_at);

ALTER TABLE shares ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON shares USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE shares;
