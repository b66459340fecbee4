-- A document becomes the sum of its updates: they are in a table of their own, a
-- snapshot stands for those up to some sequence, and content is what was derived of
-- the state, as Markdown, up to content_sequence.
--
-- While the previous version of the program still runs, it reads and writes
-- documents, versions and operations as it always did, and knows nothing of the rest.
-- What it does is told by two things. A row that it makes has seed_before = '', the
-- column's default: so do all rows that are there already. And each of its writes
-- leaves the column writes as it is, which a program that knows this migration raises.
-- Whenever seed_before is not null, content is not derived but was written by it, and
-- the difference between the two is still to be brought into the state: by whoever
-- opens the document next, or has it open. Until that is done nobody overwrites content.
--
--   It creates a document while new instances run: the row has a seed (nothing
--   before, its content after), and begin_head gives it its head.
--   It edits one that new instances have open, or that nobody has open: foreign_write
--   notes what the content was before, and moves the head by one, with an update that
--   changes nothing, so that updates stay dense. New instances see that the head has
--   moved, read the update and the seed with it, and bring the seed in. What the old
--   program read may be some seconds old (content_sequence): it is the difference
--   that counts, and so nothing that was written meanwhile is lost. A second write
--   before that happens keeps the first "before".
--   It renames: the head moves, and that is all.
--   It deletes one: head, updates and snapshot go with it. A commit that waits for
--   the head's lock finds it gone; instances that look at the head do, too.
--   It reads what new instances write: content, which is a snapshot old at most.
--
-- Sequences only grow. The old program takes the next one after documents.sequence,
-- which is never ahead of the head: new programs raise it with operations and
-- snapshots, but not with each update. What it then writes as sequence is replaced by
-- the head's next one. Its row in versions keeps the number it took. That is free,
-- for new programs raise documents.sequence with each version they write, and is used
-- later only by a snapshot that was on its way: then the old program's version stays.
-- Its own answer and announcement have that number, too; who saw the head further on
-- learns of the change from the row.
--
-- Locks are taken in this order: documents, heads (by workspace and document),
-- snapshots, updates. A commit of updates takes heads only.
--
-- When no old version can be running any more, foreign_write and the column writes
-- may go.

-- +goose Up

-- The newest sequence of each document that is not deleted. A table of its own, with
-- room in its pages, so that moving a head touches no index.
create table heads (
	workspace_id uuid   not null,
	document_id  uuid   not null,
	sequence     bigint not null,
	primary key (workspace_id, document_id),
	foreign key (workspace_id, document_id) references documents (workspace_id, id) on delete cascade
) with (fillfactor = 40);

-- What was committed and is in no snapshot yet. No foreign key: rows are only written
-- under the lock of the head, and a check for each would cost as much as writing it.
create table updates (
	workspace_id uuid        not null,
	document_id  uuid        not null,
	sequence     bigint      not null,
	data         bytea       not null, -- a Yjs update, v1
	member_id    uuid        not null,
	run_id       uuid,
	created_at   timestamptz not null,
	primary key (workspace_id, document_id, sequence)
);

create table snapshots (
	workspace_id uuid        not null,
	document_id  uuid        not null,
	sequence     bigint      not null, -- everything up to it is contained
	state        bytea       not null, -- a Yjs update, v2
	vector       bytea       not null,
	text         text        not null, -- plain, for search
	created_at   timestamptz not null,
	primary key (workspace_id, document_id),
	foreign key (workspace_id, document_id) references documents (workspace_id, id) on delete cascade
);

alter table documents
	add column content_sequence bigint not null default 0, -- 0: content is nobody's rendering
	add column seed_before      text default '',
	add column writes           bigint not null default 0;

-- Those with a seed, which somebody looks for.
create index documents_seeded on documents (workspace_id, id) where seed_before is not null;

alter table versions
	add column state    bytea,       -- a Yjs update, v2; null where there was only Markdown
	add column began_at timestamptz; -- of live editing: when this stretch of it began

alter table heads enable row level security, force row level security;
alter table updates enable row level security, force row level security;
alter table snapshots enable row level security, force row level security;
create policy tenant on heads using (workspace_id = claim_workspace() or claim_system());
create policy tenant on updates using (workspace_id = claim_workspace() or claim_system());
create policy tenant on snapshots using (workspace_id = claim_workspace() or claim_system());

-- +goose StatementBegin
create function begin_head() returns trigger language plpgsql set search_path from current as $$
begin
	insert into heads (workspace_id, document_id, sequence) values (new.workspace_id, new.id, new.sequence);
	return null;
end $$;

create function foreign_write() returns trigger language plpgsql set search_path from current as $$
declare
	head bigint;
begin
	update heads set sequence = sequence + 1 where workspace_id = new.workspace_id and document_id = new.id returning sequence into strict head;
	new.sequence := head;
	if new.deleted_at is not null then
		new.seed_before := null;
		return new;
	end if;
	insert into updates (workspace_id, document_id, sequence, data, member_id, run_id, created_at)
	values (new.workspace_id, new.id, head, '\x0000', new.updated_by, new.updated_run, now());
	if new.content <> old.content then
		new.seed_before := coalesce(old.seed_before, old.content);
		new.content_sequence := 0;
	elsif old.content_sequence = head - 1 then
		new.content_sequence := head;
	end if;
	return new;
end $$;

create function end_head() returns trigger language plpgsql set search_path from current as $$
begin
	delete from heads where workspace_id = new.workspace_id and document_id = new.id;
	delete from snapshots where workspace_id = new.workspace_id and document_id = new.id;
	delete from updates where workspace_id = new.workspace_id and document_id = new.id;
	return null;
end $$;
-- +goose StatementEnd

create trigger begin_head after insert on documents
	for each row when (new.deleted_at is null) execute function begin_head();
create trigger foreign_write before update of sequence on documents
	for each row when (new.writes = old.writes and old.deleted_at is null) execute function foreign_write();
create trigger end_head after update of deleted_at on documents
	for each row when (old.deleted_at is null and new.deleted_at is not null) execute function end_head();

-- No document is made or written meanwhile: the table was altered in this transaction.
insert into heads (workspace_id, document_id, sequence)
	select workspace_id, id, sequence from documents where deleted_at is null;

-- +goose Down

-- What is in no snapshot yet is lost to the previous version of the program, which
-- goes on with content. Sequences go on from where they are.
drop trigger begin_head on documents;
drop trigger foreign_write on documents;
drop trigger end_head on documents;
update documents d set sequence = h.sequence from heads h where h.workspace_id = d.workspace_id and h.document_id = d.id and h.sequence > d.sequence;
drop function begin_head(), foreign_write(), end_head();
drop table snapshots, updates, heads;
alter table versions drop column began_at, drop column state;
alter table documents drop column writes, drop column seed_before, drop column content_sequence;
