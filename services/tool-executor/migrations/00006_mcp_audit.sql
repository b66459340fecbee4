-- +goose Up

-- Who changed a workspace's MCP servers. Each row is written in the transaction of what it
-- describes. Paths of URLs, which may hold secrets, are not in it.
CREATE TABLE mcp_audit (
	id           uuid PRIMARY KEY,
	workspace_id uuid        NOT NULL,
	at           timestamptz NOT NULL DEFAULT clock_timestamp(),
	member_id    uuid        NOT NULL,
	action       text        NOT NULL,
	-- may be deleted before the row, which stays
	server_id    uuid        NOT NULL,
	server_name  text        NOT NULL,
	detail       text        NOT NULL DEFAULT ''
);
CREATE INDEX mcp_audit_newest ON mcp_audit (workspace_id, at DESC, id DESC);
ALTER TABLE mcp_audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- Without policies for UPDATE and DELETE, the service can only add and read rows.
CREATE POLICY reading ON mcp_audit FOR SELECT USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON mcp_audit FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE mcp_audit;
