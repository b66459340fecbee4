-- +goose Up

-- A hash of what was asked for when the session was made, so that its idempotency key is
-- not taken for another request; NULL for sessions from before, and without a key.
ALTER TABLE sessions ADD COLUMN request_hash bytea;

-- +goose Down
ALTER TABLE sessions DROP COLUMN request_hash;
