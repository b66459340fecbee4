-- +goose Up

-- Since when a data key has a successor: nothing new is sealed with it then, what it
-- has sealed is sealed anew, and when no row uses it any more it is removed.
ALTER TABLE data_keys ADD COLUMN retired_at timestamptz;
CREATE INDEX data_keys_retired ON data_keys (workspace_id) WHERE retired_at IS NOT NULL;

-- +goose Down
ALTER TABLE data_keys DROP COLUMN retired_at;
