-- +goose Up

-- Messages form a tree: see package branch. A message follows the one at the position before it,
-- unless a branch begins with it.
CREATE TABLE branches (
    session_id   uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    -- the position of the branch's first message, which has yet to join while it is the session's
    -- next_position
    first        bigint NOT NULL,
    -- the positions of the messages before it
    path         int8multirange NOT NULL,
    PRIMARY KEY (session_id, first)
);
ALTER TABLE branches ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON branches USING (workspace_id = claim_workspace() OR claim_system());

-- The ordinal of the newest event that says that another branch is the current one.
ALTER TABLE sessions ADD COLUMN switched bigint;

-- The session that it is a copy of, which may be deleted.
ALTER TABLE sessions ADD COLUMN forked_from uuid;

-- The position of the last message that a summary stands for. NULL: messages, as in every session
-- with one branch.
ALTER TABLE summaries ADD COLUMN position bigint;

-- Of a run that answers an earlier message again; the key of the others is their message's.
ALTER TABLE runs ADD COLUMN idempotency_key text;
CREATE UNIQUE INDEX runs_idempotency ON runs (session_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The positions of the messages from the first one to the one at the given position.
-- +goose StatementBegin
CREATE FUNCTION path_to(workspace uuid, session uuid, at bigint)
    RETURNS int8multirange LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT CASE WHEN at < 1 THEN '{}'::int8multirange ELSE coalesce((
        SELECT b.path + int8multirange(int8range(b.first, at, '[]')) FROM branches b
        WHERE b.workspace_id = workspace AND b.session_id = session AND b.first <= at
        ORDER BY b.first DESC LIMIT 1), int8multirange(int8range(1, at, '[]'))) END
$$;
-- +goose StatementEnd

-- The positions of the messages of the current branch, and of all that are to come.
-- +goose StatementBegin
CREATE FUNCTION current_path(workspace uuid, session uuid)
    RETURNS int8multirange LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT path_to(workspace, session, 9223372036854775806)
$$;
-- +goose StatementEnd

-- The position of the message that the one at the given position follows; 0 if it follows none.
-- +goose StatementBegin
CREATE FUNCTION parent_of(workspace uuid, session uuid, at bigint)
    RETURNS bigint LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((
        SELECT coalesce(upper(b.path) - 1, 0) FROM branches b
        WHERE b.workspace_id = workspace AND b.session_id = session AND b.first = at), at - 1)
$$;
-- +goose StatementEnd

-- +goose Down
-- The version before reads the messages of all branches as one conversation.
DROP FUNCTION parent_of(uuid, uuid, bigint);
DROP FUNCTION current_path(uuid, uuid);
DROP FUNCTION path_to(uuid, uuid, bigint);
DROP INDEX runs_idempotency;
ALTER TABLE runs DROP COLUMN idempotency_key;
ALTER TABLE summaries DROP COLUMN position;
ALTER TABLE sessions DROP COLUMN forked_from;
ALTER TABLE sessions DROP COLUMN switched;
DROP TABLE branches;
