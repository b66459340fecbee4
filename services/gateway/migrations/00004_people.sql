-- +goose Up

-- What the OpenID Connect provider says about a person who has signed in there.
CREATE TABLE people (
	member_id  uuid PRIMARY KEY,
	-- in lower case; '' unless it is verified
	email      text        NOT NULL CHECK (length(email) <= 254),
	name       text        NOT NULL CHECK (length(name) <= 200),
	created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Whoever signs in with the address becomes a member. An invitation ends with the
-- membership of the owner who made it.
CREATE TABLE invitations (
	workspace_id uuid        NOT NULL,
	email        text        NOT NULL CHECK (length(email) BETWEEN 3 AND 254),
	role         text        NOT NULL CHECK (role IN ('owner', 'editor', 'viewer')),
	created_by   uuid        NOT NULL,
	created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (workspace_id, email),
	FOREIGN KEY (workspace_id, created_by) REFERENCES members (workspace_id, member_id) ON DELETE CASCADE
);
CREATE INDEX invitations_by_email ON invitations (email);
CREATE INDEX invitations_by_creator ON invitations (workspace_id, created_by);

ALTER TABLE people      ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE invitations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON people USING (claim_system());
-- Members of a workspace see one another, and everybody sees themselves. Reads only.
CREATE POLICY own ON people FOR SELECT USING (member_id = claim_member());
CREATE POLICY tenant ON people FOR SELECT USING (
	EXISTS (SELECT FROM members m WHERE m.workspace_id = claim_workspace() AND m.member_id = people.member_id)
);
CREATE POLICY tenant ON invitations USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE invitations;
DROP TABLE people;
