-- +goose Up

-- Whether an owner has to sign in to a server: 'required', or 'more' if the server works, and
-- has refused a call for a scope that was not granted. What the server said of it is kept for
-- the next time.
ALTER TABLE mcp_servers
	ADD COLUMN sign_in text NOT NULL DEFAULT '' CHECK (sign_in IN ('', 'required', 'more')),
	ADD COLUMN resource_metadata text NOT NULL DEFAULT '',
	ADD COLUMN scope text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE mcp_servers
	DROP COLUMN scope,
	DROP COLUMN resource_metadata,
	DROP COLUMN sign_in;
