-- +goose Up

-- The runs of a workspace, newest first.
CREATE INDEX runs_newest ON runs (workspace_id, created_at DESC, id DESC);

-- +goose Down
DROP INDEX runs_newest;
