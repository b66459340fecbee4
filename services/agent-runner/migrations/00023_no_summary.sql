-- +goose Up

-- How many messages the conversation had when the model last failed to summarize it; 0 if it never did.
ALTER TABLE sessions ADD COLUMN no_summary_at integer NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE sessions DROP COLUMN no_summary_at;
