-- An operation can be undone: its version keeps the operation's update, which defines what it
-- inserted and deleted. The deleted text is in the state of the version before it. Versions of
-- releases without these columns cannot be undone; such releases read and write as before.

-- +goose Up
ALTER TABLE versions
	ADD COLUMN change    bytea,  -- of an operation: a Yjs update, v1
	ADD COLUMN undoes    bigint, -- of an undo: the version that it reverted
	ADD COLUMN undone_by bigint; -- the version that reverted this one

-- +goose Down
ALTER TABLE versions DROP COLUMN undone_by, DROP COLUMN undoes, DROP COLUMN change;
