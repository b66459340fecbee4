-- If an update was committed before it was quarantined, the next snapshot omits it, and
-- quarantine keeps its only copy.

-- +goose Up
ALTER TABLE quarantine ADD COLUMN committed boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE quarantine DROP COLUMN committed;
