-- +goose Up

-- The zero workspace, 00000000-0000-0000-0000-000000000000, is the operator's: its
-- accounts are shared with every workspace. No member is in it.

-- The keys that seal a workspace's credentials, each wrapped by the operator's
-- key-encryption key, which is not in the database.
CREATE TABLE data_keys (
    workspace_id uuid NOT NULL,
    version      integer NOT NULL CHECK (version > 0),
    -- names the key-encryption key; tells nothing of it
    kek          text NOT NULL,
    wrapped      bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, version)
);

-- One credential of one provider. sealed opens only with this row's workspace, id
-- and key_version.
CREATE TABLE accounts (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    provider     text NOT NULL,
    profile      text NOT NULL,
    label        text NOT NULL DEFAULT '',
    hint         text NOT NULL DEFAULT '',
    -- '' for the profile's own
    base_url     text NOT NULL DEFAULT '',
    enabled      boolean NOT NULL DEFAULT true,
    key_version  integer NOT NULL,
    sealed       bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    PRIMARY KEY (workspace_id, id),
    CONSTRAINT accounts_id UNIQUE (id),
    CONSTRAINT accounts_data_key FOREIGN KEY (workspace_id, key_version) REFERENCES data_keys (workspace_id, version)
);
CREATE INDEX accounts_provider ON accounts (workspace_id, provider, created_at, id);

-- What happened to credentials, and who used them. Rows are only ever added: there
-- is no policy under which one could be changed or removed.
CREATE TABLE audit (
    -- whose event it is: for the use of a shared account, the workspace that used it
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    action       text NOT NULL CHECK (action IN ('created', 'removed', 'used')),
    account_id   uuid NOT NULL,
    provider     text NOT NULL,
    origin       text NOT NULL CHECK (origin IN ('workspace', 'shared', 'environment')),
    -- who; NULL for the operator's command line
    member_id    uuid,
    -- through which service, and from which address where it is known
    service      text NOT NULL,
    address      text NOT NULL DEFAULT '',
    -- where it was used; zero where that was in no session
    session_id   uuid NOT NULL,
    PRIMARY KEY (workspace_id, id)
);
-- one row for the first use of an account in a session
CREATE UNIQUE INDEX audit_first_use ON audit (workspace_id, account_id, session_id) WHERE action = 'used';
CREATE INDEX audit_at ON audit (workspace_id, at);

ALTER TABLE data_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON data_keys
    USING (workspace_id = claim_workspace() OR claim_system());

-- A workspace reads the shared accounts too, and writes only its own.
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON accounts FOR SELECT
    USING (workspace_id = claim_workspace()
        OR workspace_id = '00000000-0000-0000-0000-000000000000' AND claim_workspace() IS NOT NULL
        OR claim_system());
CREATE POLICY adding ON accounts FOR INSERT
    WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON accounts FOR UPDATE
    USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY removing ON accounts FOR DELETE
    USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON audit FOR SELECT
    USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON audit FOR INSERT
    WITH CHECK (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE audit;
DROP TABLE accounts;
DROP TABLE data_keys;
