-- +goose Up

-- One row for each call that an executor has begun with.
create table outcomes (
	workspace_id uuid        not null,
	key          uuid        not null,
	run_id       uuid        not null,
	session_id   uuid        not null,
	tool_call_id text        not null,
	tool_name    text        not null,
	effect       smallint    not null, -- signalbox.tool.v1.Effect
	started_at   timestamptz not null,

	-- Who is at work on it. Every claim adds one to attempt, and only the claim of
	-- the current attempt may write an outcome.
	state        text        not null check (state in ('started', 'done')),
	attempt      int         not null,
	owner        uuid        not null,
	lease_until  timestamptz not null,

	outcome      smallint, -- signalbox.tool.v1.OutcomeState
	result       text,     -- the envelope
	error_type   text,
	summary      text,
	duration_ms  bigint,
	bytes        int,
	finished_at  timestamptz,

	primary key (workspace_id, key),
	check (state = 'started' or outcome is not null and result is not null and finished_at is not null)
);
create index outcomes_age on outcomes (started_at);

alter table outcomes enable row level security, force row level security;
create policy tenant on outcomes using (workspace_id = claim_workspace() or claim_system());

-- +goose Down
drop table outcomes;
