-- +goose Up

-- A person who is signed in with a browser. The secret is in the browser's cookie; it is
-- valid in all workspaces of the person.
CREATE TABLE browser_sessions (
	session_id uuid PRIMARY KEY,
	hash       bytea       NOT NULL UNIQUE CHECK (length(hash) = 32),
	member_id  uuid        NOT NULL,
	user_agent text        NOT NULL,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
	expires_at timestamptz NOT NULL
);
CREATE INDEX browser_sessions_by_member ON browser_sessions (member_id, created_at);

-- A link that signs its member in once.
CREATE TABLE sign_in_links (
	hash       bytea       PRIMARY KEY CHECK (length(hash) = 32),
	member_id  uuid        NOT NULL,
	expires_at timestamptz NOT NULL
);

ALTER TABLE browser_sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE sign_in_links    ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON browser_sessions USING (member_id = claim_member() OR claim_system());
CREATE POLICY own ON sign_in_links    USING (member_id = claim_member() OR claim_system());

-- +goose Down
DROP TABLE sign_in_links;
DROP TABLE browser_sessions;
