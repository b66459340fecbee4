-- +goose Up

-- What the step cost at the price of the list when it was committed, in millionths of a
-- dollar; NULL where the price was unknown. An account with a flat rate may have paid
-- less: what accounts cost is the credential broker's to tell.
ALTER TABLE usage ADD COLUMN cost_micros bigint;

-- +goose Down
ALTER TABLE usage DROP COLUMN cost_micros;
