-- +goose Up

-- A deleted document stays for a while as a row without content, for readers that missed
-- the announcement of its deletion.
CREATE TABLE documents (
	workspace_id  uuid        NOT NULL,
	id            uuid        NOT NULL,
	name          text        NOT NULL,
	content       text        NOT NULL,
	sequence      bigint      NOT NULL, -- incremented by every change, including the deletion
	created_by    uuid        NOT NULL,
	created_at    timestamptz NOT NULL,
	updated_by    uuid        NOT NULL,
	updated_run   uuid,
	updated_at    timestamptz NOT NULL, -- never decreases, even if the clock does
	deleted_at    timestamptz,
	versions      int         NOT NULL, -- number of rows in versions; version_bytes: their size
	version_bytes bigint      NOT NULL,
	PRIMARY KEY (workspace_id, id)
);
CREATE INDEX documents_newest ON documents (workspace_id, updated_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX documents_changed ON documents (workspace_id, updated_at);
CREATE INDEX documents_deleted ON documents (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE versions (
	workspace_id uuid        NOT NULL,
	document_id  uuid        NOT NULL,
	version      bigint      NOT NULL, -- the document's sequence after the change
	member_id    uuid        NOT NULL,
	run_id       uuid,
	operation    text        NOT NULL,
	name         text        NOT NULL,
	content      text        NOT NULL,
	bytes        bigint      NOT NULL,
	created_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, document_id, version),
	FOREIGN KEY (workspace_id, document_id) REFERENCES documents (workspace_id, id) ON DELETE CASCADE
);

-- The response to an operation, inserted by the transaction that changed the document. A
-- repetition with the same key gets the same response.
CREATE TABLE operations (
	workspace_id uuid        NOT NULL,
	key          uuid        NOT NULL,
	request      bytea       NOT NULL, -- SHA-256 of the request
	response     bytea       NOT NULL,
	created_at   timestamptz NOT NULL,
	CONSTRAINT operations_pkey PRIMARY KEY (workspace_id, key)
);
CREATE INDEX operations_age ON operations (created_at);

ALTER TABLE documents ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE versions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE operations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON documents USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON versions USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON operations USING (workspace_id = claim_workspace() OR claim_system());

-- +goose Down
DROP TABLE operations, versions, documents;
