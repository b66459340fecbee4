-- +goose Up

-- The JSON Schema that the run's final answer has to satisfy; NULL for free text.
ALTER TABLE runs ADD COLUMN response_schema json;

-- +goose Down
ALTER TABLE runs DROP COLUMN response_schema;
