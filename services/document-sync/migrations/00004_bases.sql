-- Content that somebody read, by the document's sequence at that moment: new Markdown
-- that was made from it is merged with what others wrote since.

-- +goose Up
create table bases (
	workspace_id uuid        not null,
	document_id  uuid        not null,
	sequence     bigint      not null,
	content      text        not null, -- Markdown
	created_at   timestamptz not null,
	primary key (workspace_id, document_id, sequence),
	foreign key (workspace_id, document_id) references documents (workspace_id, id) on delete cascade
);
create index bases_age on bases (created_at);
alter table bases enable row level security, force row level security;
create policy tenant on bases using (workspace_id = claim_workspace() or claim_system());

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

-- +goose Down
-- +goose StatementBegin
create or replace function end_head() returns trigger language plpgsql set search_path from current as $$
begin
	delete from heads where workspace_id = new.workspace_id and document_id = new.id;
	delete from snapshots where workspace_id = new.workspace_id and document_id = new.id;
	delete from updates where workspace_id = new.workspace_id and document_id = new.id;
	return null;
end $$;
-- +goose StatementEnd
drop table bases;
