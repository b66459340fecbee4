-- +goose Up

-- A deleted document stays for a while as a row without content, so that whoever
-- missed the notice of its end finds it here.
create table documents (
	workspace_id  uuid        not null,
	id            uuid        not null,
	name          text        not null,
	content       text        not null,
	sequence      bigint      not null, -- plus one with every change, deletion included
	created_by    uuid        not null,
	created_at    timestamptz not null,
	updated_by    uuid        not null,
	updated_run   uuid,
	updated_at    timestamptz not null, -- never goes back, whatever the clock does
	deleted_at    timestamptz,
	versions      int         not null, -- rows in versions, and their bytes
	version_bytes bigint      not null,
	primary key (workspace_id, id)
);
create index documents_newest on documents (workspace_id, updated_at desc, id desc) where deleted_at is null;
create index documents_changed on documents (workspace_id, updated_at);
create index documents_deleted on documents (deleted_at) where deleted_at is not null;

create table versions (
	workspace_id uuid        not null,
	document_id  uuid        not null,
	version      bigint      not null, -- the document's sequence after the change
	member_id    uuid        not null,
	run_id       uuid,
	operation    text        not null,
	name         text        not null,
	content      text        not null,
	bytes        bigint      not null,
	created_at   timestamptz not null,
	primary key (workspace_id, document_id, version),
	foreign key (workspace_id, document_id) references documents (workspace_id, id) on delete cascade
);

-- What was answered to an operation, written in the transaction that changed the
-- document: the same key again gets the same answer.
create table operations (
	workspace_id uuid        not null,
	key          uuid        not null,
	request      bytea       not null, -- SHA-256 of what was asked
	response     bytea       not null,
	created_at   timestamptz not null,
	constraint operations_pkey primary key (workspace_id, key)
);
create index operations_age on operations (created_at);

alter table documents enable row level security, force row level security;
alter table versions enable row level security, force row level security;
alter table operations enable row level security, force row level security;
create policy tenant on documents using (workspace_id = claim_workspace() or claim_system());
create policy tenant on versions using (workspace_id = claim_workspace() or claim_system());
create policy tenant on operations using (workspace_id = claim_workspace() or claim_system());

-- +goose Down
drop table operations, versions, documents;
