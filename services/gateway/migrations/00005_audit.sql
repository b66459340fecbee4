-- +goose Up

-- Who changed a workspace's members, invitations and keys, and shared its documents. Rows are neither changed nor deleted.
CREATE TABLE audit (
	id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	workspace_id uuid        NOT NULL,
	at           timestamptz NOT NULL DEFAULT clock_timestamp(),
	-- who did it; of a person who joins, themselves
	member_id    uuid        NOT NULL,
	action       text        NOT NULL,
	-- the member, the address, the key, the browser session or the document
	subject      text        NOT NULL,
	detail       text        NOT NULL DEFAULT ''
);
CREATE INDEX audit_newest ON audit (workspace_id, at DESC, id DESC);
ALTER TABLE audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- Without policies for UPDATE and DELETE, the service can only add and read rows.
CREATE POLICY reading ON audit FOR SELECT USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON audit FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE audit;
