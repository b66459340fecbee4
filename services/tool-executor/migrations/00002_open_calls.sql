-- +goose Up

alter table outcomes
	-- The call as it came (signalbox.tool.v1.Call), while it is open, so that another
	-- executor can go on with it without its message.
	add column work     bytea,
	-- A digest of what was asked for: a key stands for one request.
	add column request  bytea,
	-- The name under which the claim's process is present, and those of the claims
	-- before it. Empty for a process of the version before.
	add column executor text   not null default '',
	add column former   text[] not null default '{}';
create index outcomes_open on outcomes (key) where state = 'started';

-- +goose Down
drop index outcomes_open;
alter table outcomes drop column work, drop column request, drop column executor, drop column former;
