-- +goose Up

-- What a person let the broker have at a provider's authorisation server, for one
-- account. Such an account's accounts.sealed is empty: its secret is the access token
-- here. internal/oauth has the states; all times are the database's.
CREATE TABLE grants (
    workspace_id        uuid NOT NULL,
    account_id          uuid NOT NULL,
    -- of the OAuth providers, which are data
    provider            text NOT NULL,
    state               text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'reauthorize', 'revoking', 'revoked')),
    -- for people: why it is not active
    reason              text NOT NULL DEFAULT '',
    -- one more with every change of the tokens: the fence for late answers
    version             bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    -- each opens only with this row's workspace, account, field and key version
    access_sealed       bytea,
    access_key_version  integer,
    refresh_sealed      bytea,
    refresh_key_version integer,
    scope               text NOT NULL DEFAULT '',
    issued_at           timestamptz NOT NULL DEFAULT now(),
    -- NULL: never
    expires_at          timestamptz,
    refresh_at          timestamptz,
    -- the attempt that is open, and until when nobody else may begin one
    attempt_id          uuid,
    lease_until         timestamptz,
    -- an answer for this version was lost: the provider may have rotated the token
    doubtful            boolean NOT NULL DEFAULT false,
    failures            integer NOT NULL DEFAULT 0,
    retry_at            timestamptz,
    last_error          text NOT NULL DEFAULT '',
    -- version or state, which every instance looks for
    changed_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, account_id),
    CONSTRAINT grants_account FOREIGN KEY (workspace_id, account_id) REFERENCES accounts (workspace_id, id) ON DELETE CASCADE,
    CONSTRAINT grants_access_key FOREIGN KEY (workspace_id, access_key_version) REFERENCES data_keys (workspace_id, version),
    CONSTRAINT grants_refresh_key FOREIGN KEY (workspace_id, refresh_key_version) REFERENCES data_keys (workspace_id, version),
    CONSTRAINT grants_access CHECK ((access_sealed IS NULL) = (access_key_version IS NULL)),
    CONSTRAINT grants_refresh CHECK ((refresh_sealed IS NULL) = (refresh_key_version IS NULL))
);
CREATE INDEX grants_due ON grants (refresh_at) WHERE state = 'active';
CREATE INDEX grants_changed ON grants (changed_at);

-- Every time that a token was sent to an authorisation server, written before it was.
-- A row without an outcome whose lease is over is a crash.
CREATE TABLE grant_attempts (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    account_id   uuid NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('refresh', 'revoke')),
    -- the version of the grant that was sent
    version      bigint NOT NULL,
    -- the instance that sent it
    instance     text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    outcome      text CHECK (outcome IN ('done', 'superseded', 'refused', 'failed', 'unsent', 'unknown', 'lost')),
    status       integer NOT NULL DEFAULT 0,
    -- the error code of the answer, and nothing else of it
    code         text NOT NULL DEFAULT '',
    PRIMARY KEY (workspace_id, id),
    CONSTRAINT grant_attempts_grant FOREIGN KEY (workspace_id, account_id) REFERENCES grants (workspace_id, account_id) ON DELETE CASCADE
);
CREATE INDEX grant_attempts_account ON grant_attempts (workspace_id, account_id, started_at);
CREATE INDEX grant_attempts_age ON grant_attempts (started_at);

-- Logins that have begun. A row is used once: it is removed by whoever completes it.
CREATE TABLE logins (
    workspace_id  uuid NOT NULL,
    id            uuid NOT NULL,
    -- zero for the operator's command line
    member_id     uuid NOT NULL,
    provider      text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('browser', 'paste', 'device')),
    -- the account that it will make, or authorise again
    account_id    uuid NOT NULL,
    again         boolean NOT NULL,
    label         text NOT NULL DEFAULT '',
    redirect      text NOT NULL DEFAULT '',
    -- SHA-256 of the state parameter; the row's id for a device
    state_hash    bytea NOT NULL,
    -- the PKCE verifier, or the device code
    sealed        bytea NOT NULL,
    key_version   integer NOT NULL,
    poll_interval integer NOT NULL DEFAULT 0,
    poll_at       timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, id),
    CONSTRAINT logins_state UNIQUE (state_hash),
    CONSTRAINT logins_data_key FOREIGN KEY (workspace_id, key_version) REFERENCES data_keys (workspace_id, version)
);
CREATE INDEX logins_expired ON logins (expires_at);

ALTER TABLE grants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON grants
    USING (workspace_id = claim_workspace() OR claim_system());
ALTER TABLE grant_attempts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON grant_attempts
    USING (workspace_id = claim_workspace() OR claim_system());
ALTER TABLE logins ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON logins
    USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE audit DROP CONSTRAINT audit_action_check,
    ADD CONSTRAINT audit_action_check CHECK (action IN ('created', 'changed', 'refreshed', 'removed', 'used'));

-- +goose Down
ALTER TABLE audit DROP CONSTRAINT audit_action_check,
    ADD CONSTRAINT audit_action_check CHECK (action IN ('created', 'removed', 'used')) NOT VALID;
DROP TABLE logins;
DROP TABLE grant_attempts;
DROP TABLE grants;
