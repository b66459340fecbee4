-- +goose Up

-- workspace_id is the workspace's own id: one name for the tenant in every table.
CREATE TABLE workspaces (
	workspace_id uuid PRIMARY KEY,
	name         text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE members (
	workspace_id uuid        NOT NULL REFERENCES workspaces ON DELETE CASCADE,
	member_id    uuid        NOT NULL,
	role         text        NOT NULL CHECK (role IN ('owner', 'editor', 'viewer')),
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (workspace_id, member_id)
);
CREATE INDEX members_by_member ON members (member_id, workspace_id);

-- A key acts for the member who made it and ends with their membership.
CREATE TABLE api_keys (
	workspace_id uuid        NOT NULL,
	key_id       uuid        NOT NULL,
	hash         bytea       NOT NULL UNIQUE CHECK (length(hash) = 32),
	hint         text        NOT NULL,
	name         text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
	role         text        NOT NULL CHECK (role IN ('owner', 'editor', 'viewer')),
	created_by   uuid        NOT NULL,
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (workspace_id, key_id),
	FOREIGN KEY (workspace_id, created_by) REFERENCES members (workspace_id, member_id) ON DELETE CASCADE
);
CREATE INDEX api_keys_by_creator ON api_keys (workspace_id, created_by);

ALTER TABLE workspaces ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE members    ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE api_keys   ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

CREATE POLICY tenant ON workspaces USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON members    USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON api_keys   USING (workspace_id = claim_workspace() OR claim_system());

-- A person reads their own memberships, and the workspaces of those. Reads only:
-- nobody makes themselves a member.
CREATE POLICY own ON members FOR SELECT USING (member_id = claim_member());
CREATE POLICY own ON workspaces FOR SELECT USING (
	workspace_id IN (SELECT m.workspace_id FROM members m WHERE m.member_id = claim_member())
);

-- +goose Down
DROP TABLE api_keys;
DROP TABLE members;
DROP TABLE workspaces;
