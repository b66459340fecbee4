-- +goose Up

-- Sign-ins at providers that have begun in a browser, until the provider sends it back.
-- The secrets are the state parameter, which the provider repeats, and a cookie, which
-- the browser that began it has and no other.
CREATE TABLE sign_ins (
	workspace_id uuid        NOT NULL,
	state_hash   bytea       NOT NULL UNIQUE CHECK (length(state_hash) = 32),
	cookie_hash  bytea       NOT NULL CHECK (length(cookie_hash) = 32),
	member_id    uuid        NOT NULL,
	kind         text        NOT NULL CHECK (kind IN ('connection', 'account')),
	-- the sign-in provider's name
	provider     text        NOT NULL,
	-- path of the console that the browser goes on to; '' for none
	return_to    text        NOT NULL DEFAULT '',
	expires_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, state_hash),
	FOREIGN KEY (workspace_id, member_id) REFERENCES members (workspace_id, member_id) ON DELETE CASCADE
);
CREATE INDEX sign_ins_by_member ON sign_ins (workspace_id, member_id);

ALTER TABLE sign_ins ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sign_ins USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE sign_ins;
