-- +goose Up

-- Whether tokens are estimated in part, because the provider did not report its final count:
-- of answers that were cut short, and of providers that report none.
ALTER TABLE runs ADD COLUMN estimated boolean NOT NULL DEFAULT false;
ALTER TABLE steps ADD COLUMN estimated boolean NOT NULL DEFAULT false;

-- Calls that died half way cost as well: a step has a second row for them.
ALTER TABLE usage ADD COLUMN estimated boolean NOT NULL DEFAULT false;
ALTER TABLE usage ADD COLUMN wasted boolean NOT NULL DEFAULT false;
ALTER TABLE usage DROP CONSTRAINT usage_pkey, ADD PRIMARY KEY (run_id, step_index, wasted);

-- +goose Down
DELETE FROM usage WHERE wasted;
ALTER TABLE usage DROP CONSTRAINT usage_pkey, ADD PRIMARY KEY (run_id, step_index);
ALTER TABLE usage DROP COLUMN wasted;
ALTER TABLE usage DROP COLUMN estimated;
ALTER TABLE steps DROP COLUMN estimated;
ALTER TABLE runs DROP COLUMN estimated;
