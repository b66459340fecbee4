-- +goose Up

-- The sessions of a workspace, the most recently changed first.
CREATE INDEX sessions_updated ON sessions (workspace_id, archived, updated_at DESC, id DESC);

-- +goose Down
DROP INDEX sessions_updated;
