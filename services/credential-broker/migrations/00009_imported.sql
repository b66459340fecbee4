-- +goose Up

-- A refresh token that was brought along is one account of one workspace, or of the
-- operator: so its hash is without a workspace from now on. Hashes that are there already
-- have theirs in them, and none of them is in two.
DROP INDEX accounts_imported;
CREATE UNIQUE INDEX accounts_imported ON accounts (imported);

-- +goose Down
DROP INDEX accounts_imported;
CREATE UNIQUE INDEX accounts_imported ON accounts (workspace_id, imported);
