-- +goose Up

-- A planned call waits for a person: may it run (question 'approval'), or did it happen
-- ('outcome', of a call whose outcome is unknown). An answer makes it dispatched or done. Its
-- deadline has passed while it is planned, so that a runner of the version before, which does
-- not know approvals and may take over the run, dispatches it in vain.
ALTER TABLE tool_calls
    ADD COLUMN question      text NOT NULL DEFAULT '' CHECK (question IN ('', 'approval', 'outcome')),
    ADD COLUMN asked_why     text NOT NULL DEFAULT '',
    ADD COLUMN asked_at      timestamptz,
    ADD COLUMN expires_at    timestamptz,
    -- SHA-256 of the arguments that the answer is about
    ADD COLUMN args_hash     bytea,
    -- of the call, from its dispatch
    ADD COLUMN time_limit_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN decision      text NOT NULL DEFAULT ''
        CHECK (decision IN ('', 'approved', 'refused', 'expired', 'happened', 'repeat', 'rule')),
    ADD COLUMN decided_why   text NOT NULL DEFAULT '',
    ADD COLUMN decided_by    uuid,
    ADD COLUMN decided_at    timestamptz,
    -- what runs.last_event covers of the call while its run waits: '', the question, or all
    ADD COLUMN announced     text NOT NULL DEFAULT '' CHECK (announced IN ('', 'question', 'all'));
CREATE INDEX tool_calls_planned ON tool_calls (workspace_id, asked_at, key) WHERE phase = 'planned';
CREATE INDEX tool_calls_expiring ON tool_calls (expires_at) WHERE phase = 'planned';

-- Since when a run that is in this step waits for a person, or last waited; NULL if it has not.
ALTER TABLE steps ADD COLUMN waiting_since timestamptz;

-- What people have decided about later calls of a tool. NULL: every session of the workspace,
-- and any arguments.
CREATE TABLE approval_rules (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    session_id   uuid REFERENCES sessions ON DELETE CASCADE,
    tool_name    text NOT NULL,
    args         json,
    args_hash    bytea,
    effect       text NOT NULL CHECK (effect IN ('allow', 'deny', 'ask')),
    created_by   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT approval_rules_subject UNIQUE NULLS NOT DISTINCT (workspace_id, tool_name, session_id, args_hash)
);
ALTER TABLE approval_rules ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON approval_rules USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE approval_rules;
ALTER TABLE steps DROP COLUMN waiting_since;
DROP INDEX tool_calls_planned, tool_calls_expiring;
ALTER TABLE tool_calls DROP COLUMN question, DROP COLUMN asked_why, DROP COLUMN asked_at, DROP COLUMN expires_at, DROP COLUMN args_hash,
    DROP COLUMN time_limit_ms, DROP COLUMN decision, DROP COLUMN decided_why, DROP COLUMN decided_by, DROP COLUMN decided_at, DROP COLUMN announced;
