-- +goose Up

-- As everywhere, the zero workspace is the operator's: its pools are those of the
-- accounts that all workspaces share, and of the environment's.

-- How the accounts of a pool are chosen from, where that is not the default.
CREATE TABLE pools (
    workspace_id uuid NOT NULL,
    provider     text NOT NULL,
    -- strategy, max_tokens, … : what is not in it has its default
    settings     jsonb NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, provider)
);

-- Accounts that are parked, and those that no longer are. Written behind by every
-- instance; of two values the one whose window began later counts, then the longer.
-- There is no reference to accounts: the environment's have no row there, and a row
-- that is written for one that was just removed does no harm.
CREATE TABLE account_limits (
    workspace_id uuid NOT NULL,
    provider     text NOT NULL,
    account_id   uuid NOT NULL,
    -- of models; '' for the account as a whole
    family       text NOT NULL,
    at           timestamptz NOT NULL,
    -- NULL once it is cleared
    until        timestamptz,
    soon         timestamptz,
    step         integer NOT NULL,
    reason       text NOT NULL,
    status       integer NOT NULL,
    -- the header that said how long
    raw          text NOT NULL,
    PRIMARY KEY (workspace_id, account_id, family)
);
CREATE INDEX account_limits_pool ON account_limits (workspace_id, provider);

-- An account's health as an instance saw it last.
CREATE TABLE account_health (
    workspace_id uuid NOT NULL,
    provider     text NOT NULL,
    account_id   uuid NOT NULL,
    health       double precision NOT NULL,
    at           timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, account_id)
);
CREATE INDEX account_health_pool ON account_health (workspace_id, provider);

-- What accounts did, by how it went. Instances add to it.
CREATE TABLE account_stats (
    workspace_id  uuid NOT NULL,
    provider      text NOT NULL,
    account_id    uuid NOT NULL,
    reason        text NOT NULL,
    requests      bigint NOT NULL,
    tokens_in     bigint NOT NULL,
    tokens_out    bigint NOT NULL,
    -- in millionths of a dollar
    cost_micros   bigint NOT NULL,
    PRIMARY KEY (workspace_id, account_id, reason)
);

-- What was written last by an instance: an addition whose commit got lost on the way
-- back is not made twice. The workspace is the operator's.
CREATE TABLE stat_writers (
    workspace_id uuid NOT NULL,
    instance     uuid NOT NULL,
    sequence     bigint NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, instance)
);

-- A workspace reads what it needs of the shared accounts too, and writes only its own.
ALTER TABLE pools ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON pools FOR SELECT
    USING (workspace_id = claim_workspace()
        OR workspace_id = '00000000-0000-0000-0000-000000000000' AND claim_workspace() IS NOT NULL
        OR claim_system());
CREATE POLICY adding ON pools FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON pools FOR UPDATE USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY removing ON pools FOR DELETE USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE account_limits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON account_limits FOR SELECT
    USING (workspace_id = claim_workspace()
        OR workspace_id = '00000000-0000-0000-0000-000000000000' AND claim_workspace() IS NOT NULL
        OR claim_system());
CREATE POLICY adding ON account_limits FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON account_limits FOR UPDATE USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY removing ON account_limits FOR DELETE USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE account_health ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON account_health FOR SELECT
    USING (workspace_id = claim_workspace()
        OR workspace_id = '00000000-0000-0000-0000-000000000000' AND claim_workspace() IS NOT NULL
        OR claim_system());
CREATE POLICY adding ON account_health FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON account_health FOR UPDATE USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY removing ON account_health FOR DELETE USING (workspace_id = claim_workspace() OR claim_system());

-- What a shared account did is the operator's business alone.
ALTER TABLE account_stats ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON account_stats
    USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE stat_writers ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY operator ON stat_writers USING (claim_system());

-- +goose Down
DROP TABLE stat_writers;
DROP TABLE account_stats;
DROP TABLE account_health;
DROP TABLE account_limits;
DROP TABLE pools;
