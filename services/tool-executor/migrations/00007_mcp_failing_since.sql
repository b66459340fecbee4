-- +goose Up

-- Since when the server has failed. An earlier release counts failures and leaves it alone, so that
-- it counts only while failure is set, and is set anew with the first failure.
ALTER TABLE mcp_servers ADD COLUMN failing_since timestamptz;

-- +goose Down
ALTER TABLE mcp_servers DROP COLUMN failing_since;
