-- +goose Up

-- What the model is told in place of the first messages of a conversation, which are kept. The
-- row with the most messages counts.
CREATE TABLE summaries (
    session_id   uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    messages     integer NOT NULL CHECK (messages > 0),
    -- messages of the conversation when it was made; answers to them do not tell its size
    known        integer NOT NULL,
    -- the run that made it, in a step of its own, and how many that run has made so far
    run_id       uuid NOT NULL,
    nth          integer NOT NULL,
    text         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_id, messages)
);
ALTER TABLE summaries ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON summaries USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE summaries;
