-- +goose Up

-- Who decided what: answers to approvals, and changes to approval rules and budgets. Each row is
-- written in the transaction of what it describes. Arguments of tool calls are not in it.
CREATE TABLE audit (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- NULL if nobody answered in time
    member_id    uuid,
    action       text NOT NULL,
    -- the tool call's id, the rule or the budget
    subject      text NOT NULL,
    tool_name    text NOT NULL DEFAULT '',
    -- may be deleted before the row, which stays
    session_id   uuid,
    run_id       uuid,
    detail       text NOT NULL DEFAULT ''
);
CREATE INDEX audit_newest ON audit (workspace_id, at DESC, id DESC);
ALTER TABLE audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- Without policies for UPDATE and DELETE, the service can only add and read rows.
CREATE POLICY reading ON audit FOR SELECT USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON audit FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE audit;
