-- Updates that made the program panic twice, each with what it takes to see it again:
-- the state of the document, and the updates to be applied to that, of which the last
-- one is to blame. None of them is part of the document.

-- +goose Up
create table quarantine (
	workspace_id uuid        not null,
	document_id  uuid        not null,
	sum          bytea       not null, -- SHA-256 of the last update
	sequence     bigint      not null, -- everything up to it is in state
	state        bytea       not null, -- a Yjs update, v2; empty: an empty document
	updates      bytea[]     not null, -- Yjs updates, v1
	member_id    uuid        not null,
	run_id       uuid,
	panic        text        not null, -- value and stack
	created_at   timestamptz not null,
	primary key (workspace_id, document_id, sum),
	foreign key (workspace_id, document_id) references documents (workspace_id, id) on delete cascade
);
alter table quarantine enable row level security, force row level security;
create policy tenant on quarantine using (workspace_id = claim_workspace() or claim_system());

-- +goose StatementBegin
create or replace function end_head() returns trigger language plpgsql set search_path from current as $$
begin
	delete from heads where workspace_id = new.workspace_id and document_id = new.id;
	delete from snapshots where workspace_id = new.workspace_id and document_id = new.id;
	delete from updates where workspace_id = new.workspace_id and document_id = new.id;
	delete from bases where workspace_id = new.workspace_id and document_id = new.id;
	delete from quarantine where workspace_id = new.workspace_id and document_id = new.id;
	return null;
end $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
create or replace function end_head() returns trigger language plpgsql set search_path from current as $$
begin
	delete from heads where workspace_id = new.workspace_id and document_id = new.id;
	delete from snapshots where workspace_id = new.workspace_id and document_id = new.id;
	delete from updates where workspace_id = new.workspace_id and document_id = new.id;
	delete from bases where workspace_id = new.workspace_id and document_id = new.id;
	return null;
end $$;
-- +goose StatementEnd
drop table quarantine;
