-- +goose Up

-- The authorization server of an MCP server, which was discovered when somebody began to sign
-- in to it, and the client that it registered; NULL where the provider is data. As JSON: it is
-- read and written as a whole. A login's client secret is sealed with its verifier.
ALTER TABLE logins ADD COLUMN server jsonb;
ALTER TABLE grants
    ADD COLUMN server jsonb,
    ADD COLUMN client_sealed bytea,
    ADD COLUMN client_key_version integer,
    ADD CONSTRAINT grants_client_key FOREIGN KEY (workspace_id, client_key_version) REFERENCES data_keys (workspace_id, version),
    ADD CONSTRAINT grants_client CHECK ((client_sealed IS NULL) = (client_key_version IS NULL));

-- +goose Down
-- The version before cannot use these accounts.
DELETE FROM logins WHERE server IS NOT NULL;
DELETE FROM accounts AS a USING grants AS g
    WHERE g.workspace_id = a.workspace_id AND g.account_id = a.id AND g.server IS NOT NULL;
ALTER TABLE logins DROP COLUMN server;
ALTER TABLE grants
    DROP CONSTRAINT grants_client,
    DROP CONSTRAINT grants_client_key,
    DROP COLUMN client_key_version,
    DROP COLUMN client_sealed,
    DROP COLUMN server;
