-- +goose Up

-- A model's title replaces that of the first message. Its usage is that of step -1 of the run.
ALTER TABLE sessions DROP CONSTRAINT sessions_title_source_check,
    ADD CONSTRAINT sessions_title_source_check CHECK (title_source IN ('', 'message', 'model', 'person'));

-- +goose Down
UPDATE sessions SET title_source = 'message' WHERE title_source = 'model';
ALTER TABLE sessions DROP CONSTRAINT sessions_title_source_check,
    ADD CONSTRAINT sessions_title_source_check CHECK (title_source IN ('', 'message', 'person'));
