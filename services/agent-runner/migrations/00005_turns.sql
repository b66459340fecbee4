-- +goose Up

-- Who waits, who is served, and who was served last: see internal/run/turn.go.
CREATE INDEX runs_waiting ON runs (workspace_id, created_at) WHERE state = 'queued';
CREATE INDEX runs_running ON runs (workspace_id) WHERE state = 'running';
CREATE INDEX runs_served ON runs (workspace_id, started_at) WHERE started_at IS NOT NULL;

-- +goose Down
DROP INDEX runs_waiting, runs_running, runs_served;
