-- +goose Up

-- The operator offers servers to workspaces, with names that a workspace's own may have too.
ALTER TABLE mcp_servers ADD COLUMN operator boolean NOT NULL DEFAULT false;
DROP INDEX mcp_servers_name;
CREATE UNIQUE INDEX mcp_servers_name ON mcp_servers (workspace_id, name) WHERE NOT operator;

-- +goose Down
DELETE FROM mcp_servers WHERE operator;
DROP INDEX mcp_servers_name;
CREATE UNIQUE INDEX mcp_servers_name ON mcp_servers (workspace_id, name);
ALTER TABLE mcp_servers DROP COLUMN operator;
