-- +goose Up

-- A person has asked for a summary of the conversation so far. The next step makes it.
ALTER TABLE sessions ADD COLUMN compact boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE sessions DROP COLUMN compact;
