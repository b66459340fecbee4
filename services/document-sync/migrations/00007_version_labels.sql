-- People name versions, which are then not thinned. Instances of the previous release may still thin
-- them.

-- +goose Up
ALTER TABLE versions ADD COLUMN label text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE versions DROP COLUMN label;
