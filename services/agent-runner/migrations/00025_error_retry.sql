-- +goose Up

-- When what failed may succeed, if the provider or the credential broker said so.
ALTER TABLE runs ADD COLUMN error_retry_at timestamptz;

-- +goose Down
ALTER TABLE runs DROP COLUMN error_retry_at;
