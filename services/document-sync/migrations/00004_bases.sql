-- Content that somebody read at a sequence: new Markdown made from it is merged with what
-- others have written since.

-- +goose Up
CREATE TABLE bases (
	workspace_id uuid        NOT NULL,
	document_id  uuid        NOT NULL,
	sequence     bigint      NOT NULL,
	content      text        NOT NULL, -- Markdown
	created_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, document_id, sequence),
	FOREIGN KEY (workspace_id, document_id) REFERENCES documents (workspace_id, id) ON DELETE CASCADE
);
CREATE INDEX bases_age ON bases (created_at);
ALTER TABLE bases ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON bases USING (workspace_id = claim_workspace() OR claim_system());

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION end_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	DELETE FROM heads WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM snapshots WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM updates WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM bases WHERE workspace_id = new.workspace_id AND document_id = new.id;
	RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION end_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	DELETE FROM heads WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM snapshots WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM updates WHERE workspace_id = new.workspace_id AND document_id = new.id;
	RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TABLE bases;
