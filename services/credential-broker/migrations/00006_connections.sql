-- +goose Up

-- Whose account the tools of a workspace reach a provider with, where a member connected
-- it: one at each provider. It ends with the account.
CREATE TABLE connections (
    workspace_id uuid NOT NULL,
    -- of the OAuth providers, which are data
    provider     text NOT NULL,
    account_id   uuid NOT NULL,
    member_id    uuid NOT NULL,
    -- whom the provider says that it belongs to; '' where it does not say
    subject      text NOT NULL DEFAULT '',
    connected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, provider),
    CONSTRAINT connections_account FOREIGN KEY (workspace_id, account_id) REFERENCES accounts (workspace_id, id) ON DELETE CASCADE
);
CREATE INDEX connections_by_account ON connections (workspace_id, account_id);

ALTER TABLE connections ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON connections
    USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE connections;
