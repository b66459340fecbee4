-- A document becomes the sum of its updates: they are in a table of their own, a snapshot
-- contains all up to a sequence, and content is Markdown rendered from the state at
-- content_sequence.
--
-- Instances of the previous release may still run. They read and write documents, versions
-- and operations as before and do not know the rest. Two columns reveal their writes. Rows
-- that they insert have seed_before = '', the default, like all existing rows. And their
-- updates do not increment the column writes, which the new release always does. If
-- seed_before is not null, content was written by the previous release, and the difference
-- between the two is a seed: it is applied to the state by the next instance that opens the
-- document, or has it open. Until then content is not overwritten.
--
--   If the previous release creates a document, the row has a seed (from nothing to content),
--   and begin_head inserts its head.
--   If it edits one, foreign_write records the previous content and increments the head, with
--   an empty update, so that updates stay dense. New instances notice the new head, read the
--   update and the seed, and apply the seed. The content that the previous release read may be
--   some seconds old (content_sequence); since a seed is a difference, nothing that was written
--   meanwhile is lost. A second write before the seed is applied keeps the first seed_before.
--   If it renames one, only the head moves.
--   If it deletes one, head, updates and snapshot are deleted too. A commit that waits for the
--   lock of the head finds it missing, and so do instances that read the head.
--   It reads the content of new instances, which is as old as the last snapshot.
--
-- Sequences only grow. The previous release uses the one after documents.sequence, which is
-- never greater than the head: the new release sets it with operations and snapshots, but not
-- with each update. foreign_write replaces the sequence by the next one of the head; the row in
-- versions keeps the one that was used. That number is free, because the new release sets
-- documents.sequence with each version, unless a concurrent snapshot uses it later: then the
-- version of the previous release stays. Its response and announcement have that number too;
-- subscribers with a newer head learn of the change from the row.
--
-- Locks are acquired in this order: documents, heads (by workspace and document), snapshots,
-- updates. A commit of updates locks heads only.
--
-- Once the previous release can no longer run, foreign_write and the column writes can be
-- removed.

-- +goose Up

-- The newest sequence of each document that is not deleted. It is a separate table with free
-- space in its pages, so that updates touch no index.
CREATE TABLE heads (
	workspace_id uuid   NOT NULL,
	document_id  uuid   NOT NULL,
	sequence     bigint NOT NULL,
	PRIMARY KEY (workspace_id, document_id),
	FOREIGN KEY (workspace_id, document_id) REFERENCES documents (workspace_id, id) ON DELETE CASCADE
) WITH (fillfactor = 40);

-- Committed updates that are not in a snapshot yet. There is no foreign key: rows are only
-- inserted under the lock of the head, and a check would cost as much as the insertion.
CREATE TABLE updates (
	workspace_id uuid        NOT NULL,
	document_id  uuid        NOT NULL,
	sequence     bigint      NOT NULL,
	data         bytea       NOT NULL, -- a Yjs update, v1
	member_id    uuid        NOT NULL,
	run_id       uuid,
	created_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, document_id, sequence)
);

CREATE TABLE snapshots (
	workspace_id uuid        NOT NULL,
	document_id  uuid        NOT NULL,
	sequence     bigint      NOT NULL, -- of the last update that it contains
	state        bytea       NOT NULL, -- a Yjs update, v2
	vector       bytea       NOT NULL,
	text         text        NOT NULL, -- plain text, for search
	created_at   timestamptz NOT NULL,
	PRIMARY KEY (workspace_id, document_id),
	FOREIGN KEY (workspace_id, document_id) REFERENCES documents (workspace_id, id) ON DELETE CASCADE
);

ALTER TABLE documents
	ADD COLUMN content_sequence bigint NOT NULL DEFAULT 0, -- 0: content was not rendered from a state
	ADD COLUMN seed_before      text DEFAULT '',
	ADD COLUMN writes           bigint NOT NULL DEFAULT 0;

-- Documents with a seed, to find them.
CREATE INDEX documents_seeded ON documents (workspace_id, id) WHERE seed_before IS NOT NULL;

ALTER TABLE versions
	ADD COLUMN state    bytea,       -- a Yjs update, v2; null if there was only Markdown
	ADD COLUMN began_at timestamptz; -- of live editing: the start of this stretch

ALTER TABLE heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE updates ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE snapshots ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON heads USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON updates USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON snapshots USING (workspace_id = claim_workspace() OR claim_system());

-- +goose StatementBegin
CREATE FUNCTION begin_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	INSERT INTO heads (workspace_id, document_id, sequence) VALUES (new.workspace_id, new.id, new.sequence);
	RETURN NULL;
END $$;

CREATE FUNCTION foreign_write() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
	head bigint;
BEGIN
	UPDATE heads SET sequence = sequence + 1 WHERE workspace_id = new.workspace_id AND document_id = new.id RETURNING sequence INTO STRICT head;
	new.sequence := head;
	IF new.deleted_at IS NOT NULL THEN
		new.seed_before := NULL;
		RETURN new;
	END IF;
	INSERT INTO updates (workspace_id, document_id, sequence, data, member_id, run_id, created_at)
	VALUES (new.workspace_id, new.id, head, '\x0000', new.updated_by, new.updated_run, now());
	IF new.content <> old.content THEN
		new.seed_before := coalesce(old.seed_before, old.content);
		new.content_sequence := 0;
	ELSIF old.content_sequence = head - 1 THEN
		new.content_sequence := head;
	END IF;
	RETURN new;
END $$;

CREATE FUNCTION end_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	DELETE FROM heads WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM snapshots WHERE workspace_id = new.workspace_id AND document_id = new.id;
	DELETE FROM updates WHERE workspace_id = new.workspace_id AND document_id = new.id;
	RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER begin_head AFTER INSERT ON documents
	FOR EACH ROW WHEN (new.deleted_at IS NULL) EXECUTE FUNCTION begin_head();
CREATE TRIGGER foreign_write BEFORE UPDATE OF sequence ON documents
	FOR EACH ROW WHEN (new.writes = old.writes AND old.deleted_at IS NULL) EXECUTE FUNCTION foreign_write();
CREATE TRIGGER end_head AFTER UPDATE OF deleted_at ON documents
	FOR EACH ROW WHEN (old.deleted_at IS NULL AND new.deleted_at IS NOT NULL) EXECUTE FUNCTION end_head();

-- Nobody writes documents meanwhile: this transaction has altered the table.
INSERT INTO heads (workspace_id, document_id, sequence)
	SELECT workspace_id, id, sequence FROM documents WHERE deleted_at IS NULL;

-- +goose Down

-- The previous release continues with content: updates after the last snapshot are lost.
-- Sequences continue.
DROP TRIGGER begin_head ON documents;
DROP TRIGGER foreign_write ON documents;
DROP TRIGGER end_head ON documents;
UPDATE documents d SET sequence = h.sequence FROM heads h WHERE h.workspace_id = d.workspace_id AND h.document_id = d.id AND h.sequence > d.sequence;
DROP FUNCTION begin_head(), foreign_write(), end_head();
DROP TABLE snapshots, updates, heads;
ALTER TABLE versions DROP COLUMN began_at, DROP COLUMN state;
ALTER TABLE documents DROP COLUMN writes, DROP COLUMN seed_before, DROP COLUMN content_sequence;
