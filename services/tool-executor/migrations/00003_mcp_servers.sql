-- +goose Up

-- MCP servers that workspaces have added.
CREATE TABLE mcp_servers (
	workspace_id uuid        NOT NULL,
	id           uuid        NOT NULL,
	name         text        NOT NULL,
	url          text        NOT NULL,
	credential   boolean     NOT NULL, -- the credential broker has an account for it
	created_by   uuid        NOT NULL,
	created_at   timestamptz NOT NULL DEFAULT now(),

	-- The definitions of its tools as it last sent them, and the digests of the approved ones.
	-- Both are null until it first answers.
	tools        text,
	approved     text[],

	checked_at   timestamptz,
	failure      text        NOT NULL DEFAULT '', -- why it cannot be used
	failures     int         NOT NULL DEFAULT 0,  -- in a row
	next_check   timestamptz NOT NULL DEFAULT now(),

	PRIMARY KEY (workspace_id, id)
);
CREATE UNIQUE INDEX mcp_servers_name ON mcp_servers (workspace_id, name);

ALTER TABLE mcp_servers ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON mcp_servers USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE mcp_servers;
