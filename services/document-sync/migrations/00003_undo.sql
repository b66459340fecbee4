-- An operation can be undone: its version keeps the update that it was, which tells
-- what it inserted and deleted. The text that it deleted is in the state of the version
-- before it. Versions of programs that do not know these columns cannot be undone; they
-- write and read all others as they did.

-- +goose Up
alter table versions
	add column change    bytea,  -- of an operation: a Yjs update, v1
	add column undoes    bigint, -- of an undo: the version that it took back
	add column undone_by bigint; -- the version that took this one back

-- +goose Down
alter table versions drop column undone_by, drop column undoes, drop column change;
