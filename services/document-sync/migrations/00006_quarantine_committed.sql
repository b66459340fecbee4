-- An update that was committed before it went into quarantine is left out of the next
-- snapshot: quarantine then has its only copy, which stays.

-- +goose Up
alter table quarantine add column committed boolean not null default false;

-- +goose Down
alter table quarantine drop column committed;
