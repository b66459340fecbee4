-- +goose Up

-- What a workspace allows itself to spend. Every limit is optional; one must be there.
CREATE TABLE budgets (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    -- workspace and member: for each day in UTC; session and run: in total
    scope        text NOT NULL CHECK (scope IN ('workspace', 'member', 'session', 'run')),
    -- the member or session that it is for; NULL: each one has a budget of its own
    subject      uuid CHECK (subject IS NULL OR scope IN ('member', 'session')),
    tokens       bigint CHECK (tokens >= 0),
    cost_micros  bigint CHECK (cost_micros >= 0),
    steps        bigint CHECK (steps >= 0),
    created_by   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(tokens, cost_micros, steps) > 0),
    CONSTRAINT budgets_subject UNIQUE NULLS NOT DISTINCT (workspace_id, scope, subject)
);

-- What was spent of a budget by one workspace, member, session or run. The commit of a step
-- adds to it. Only the newest day of a daily budget is kept.
CREATE TABLE budget_use (
    budget_id    uuid NOT NULL REFERENCES budgets ON DELETE CASCADE,
    subject      uuid NOT NULL,
    workspace_id uuid NOT NULL,
    -- 'epoch' for budgets in total
    day          date NOT NULL,
    tokens       bigint NOT NULL,
    cost_micros  bigint NOT NULL,
    steps        bigint NOT NULL,
    PRIMARY KEY (budget_id, subject)
);
CREATE INDEX budget_use_subject ON budget_use (subject);

-- What the step in progress may use, counted as spent while the run is running. The step's
-- commit sets it to zero; a reservation of a dead runner ends with the next claim's.
ALTER TABLE runs ADD COLUMN reserved_tokens bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN reserved_cost_micros bigint NOT NULL DEFAULT 0;

-- What a person is told about the finish reason, such as which budget is spent.
ALTER TABLE runs ADD COLUMN finish_detail text NOT NULL DEFAULT '';

-- The session of a step, which may be deleted before its usage; NULL for usage from before.
ALTER TABLE usage ADD COLUMN session_id uuid;

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['budgets', 'budget_use'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY tenant ON %I USING (workspace_id = claim_workspace() OR claim_system())', t);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
ALTER TABLE usage DROP COLUMN session_id;
ALTER TABLE runs DROP COLUMN finish_detail, DROP COLUMN reserved_cost_micros, DROP COLUMN reserved_tokens;
DROP TABLE budget_use, budgets;
