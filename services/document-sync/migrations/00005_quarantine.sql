-- Updates that caused a panic twice, each with what reproduces it: the state of the document,
-- and the updates to apply to it. The last one is the quarantined update; none of them is part
-- of the document.

-- +goose Up
CREATE TABLE quarantine (
	workspace_id uuid        NOT NULL,
	document_id  uuid        NOT NULL,
	sum          bytea       NOT NULL, -- SHA-256 of the last update
	sequence     bigint      NOT NULL, -- of the last update in state
	state        bytea       NOT NULL, -- a Yjs update, v2; empty: an empty document
	updates      bytea[]     NOT NULL, -- Yjs updates, v1
	member_id    uuid        NOT NULL,
	run_id       uuid,
	panic        text        NOT NULL, -- value and stack
	created_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, document_id, sum),
	FOREIGN KEY (workspace_id, document_id) REFERENCES documents (workspace_id, id) ON DELETE CASCADE
);
ALTER TABLE quarantine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON quarantine USING (workspace_id = claim_workspace() OR claim_system());

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION end_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	DELETE FROM heads WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM snapshots WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM updates WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM bases WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM quarantine WHERE workspace_id = new.workspace_id AND document_id = new.id;
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
	DELETE FROM bases WHERE workspace_id = new.workspace_id AND document_id = new.id;
	RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TABLE quarantine;
