-- +goose Up

-- A conversation. next_ordinal numbers its runs, next_position its messages; both
-- are handed out under this row's lock, which also decides who runs next.
CREATE TABLE sessions (
    id              uuid PRIMARY KEY,
    workspace_id    uuid NOT NULL,
    created_by      uuid NOT NULL,
    title           text NOT NULL DEFAULT '',
    -- where the title is from: '' (none yet), 'message' or 'person'
    title_source    text NOT NULL DEFAULT '' CHECK (title_source IN ('', 'message', 'person')),
    model           text NOT NULL,
    provider        text NOT NULL,
    system_prompt   text NOT NULL DEFAULT '',
    preset          text NOT NULL,
    tools           text[],
    max_steps       integer CHECK (max_steps BETWEEN 1 AND 50),
    archived        boolean NOT NULL DEFAULT false,
    next_ordinal    bigint NOT NULL DEFAULT 1,
    next_position   bigint NOT NULL DEFAULT 1,
    idempotency_key text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    -- a page's cursor is the created_at of its last session, alone
    CONSTRAINT sessions_created_at UNIQUE (workspace_id, created_at),
    CONSTRAINT sessions_idempotency UNIQUE (workspace_id, created_by, idempotency_key)
);

-- One entry of the conversation, as the AI SDK stores it. json and not jsonb: what
-- was written is served byte for byte. created_at is when it joined the
-- conversation: a queued message joins when its run begins.
CREATE TABLE messages (
    id            uuid PRIMARY KEY,
    workspace_id  uuid NOT NULL,
    session_id    uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
    run_id        uuid NOT NULL,
    -- its place in the conversation; NULL while it waits to join
    position      bigint,
    step_index    integer,
    role          text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    content       json NOT NULL,
    -- the provider's own blocks, for the next request in the same dialect
    raw_dialect   text,
    raw           bytea,
    -- of a user message: the same key again is the same message
    idempotency_key text,
    -- the person stopped the run before the answer was whole
    interrupted   boolean NOT NULL DEFAULT false,
    tokens_in     bigint,
    tokens_out    bigint,
    model         text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL,
    CONSTRAINT messages_position UNIQUE (session_id, position),
    CONSTRAINT messages_idempotency UNIQUE (session_id, idempotency_key)
);
CREATE INDEX messages_run ON messages (run_id);

-- The answering of one user message.
CREATE TABLE runs (
    id                 uuid PRIMARY KEY,
    workspace_id       uuid NOT NULL,
    session_id         uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
    ordinal            bigint NOT NULL,
    state              text NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'done', 'failed', 'cancelled')),
    user_message_id    uuid NOT NULL,
    created_by         uuid NOT NULL,
    role               text NOT NULL,
    provider           text NOT NULL,
    model              text NOT NULL,
    tools              text[],
    timezone           text NOT NULL DEFAULT '',
    collect_tool_stats boolean NOT NULL DEFAULT false,
    -- a claim: each one adds one to epoch, and writes only while it is the newest
    epoch              bigint NOT NULL DEFAULT 0,
    runner             text NOT NULL DEFAULT '',
    lease_until        timestamptz,
    -- claims since something was committed: a run that fails the same way each time is given up
    fruitless          integer NOT NULL DEFAULT 0,
    -- the number of the event that announces what is committed; -1 before the first
    last_event         bigint NOT NULL DEFAULT -1,
    steps              integer NOT NULL DEFAULT 0,
    input_tokens       bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    output_tokens      bigint NOT NULL DEFAULT 0,
    reasoning_tokens   bigint NOT NULL DEFAULT 0,
    text               text NOT NULL DEFAULT '',
    finish_reason      text NOT NULL DEFAULT '',
    error_message      text NOT NULL DEFAULT '',
    error_code         text NOT NULL DEFAULT '',
    deadline           timestamptz,
    created_at         timestamptz NOT NULL,
    started_at         timestamptz,
    ended_at           timestamptz,
    CONSTRAINT runs_ordinal UNIQUE (session_id, ordinal)
);
-- only one run of a session is active at a time
CREATE UNIQUE INDEX runs_active ON runs (session_id) WHERE state IN ('running', 'waiting');
CREATE INDEX runs_queued ON runs (session_id, ordinal) WHERE state = 'queued';
-- the sweeper's view: what somebody ought to be working on
CREATE INDEX runs_open ON runs (coalesce(lease_until, created_at)) WHERE state IN ('queued', 'running');

-- One model call. It is answered when the model's message is committed, and
-- complete when its tools' results are too.
CREATE TABLE steps (
    run_id               uuid NOT NULL REFERENCES runs ON DELETE CASCADE,
    step_index           integer NOT NULL,
    workspace_id         uuid NOT NULL,
    state                text NOT NULL CHECK (state IN ('open', 'answered', 'complete')),
    response_id          text NOT NULL DEFAULT '',
    finish_reason        text NOT NULL DEFAULT '',
    input_tokens         bigint NOT NULL DEFAULT 0,
    cache_read_tokens    bigint NOT NULL DEFAULT 0,
    cache_write_tokens   bigint NOT NULL DEFAULT 0,
    output_tokens        bigint NOT NULL DEFAULT 0,
    reasoning_tokens     bigint NOT NULL DEFAULT 0,
    -- of calls that died half way, which nobody got anything for
    wasted_input_tokens  bigint NOT NULL DEFAULT 0,
    wasted_output_tokens bigint NOT NULL DEFAULT 0,
    committed_at         timestamptz,
    PRIMARY KEY (run_id, step_index)
);

-- The ledger of tool calls. A call is dispatched only after its row says so; its
-- key is what the executor, and where it takes one the outside world, gets.
CREATE TABLE tool_calls (
    key          uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    run_id       uuid NOT NULL REFERENCES runs ON DELETE CASCADE,
    step_index   integer NOT NULL,
    call_index   integer NOT NULL,
    tool_call_id text NOT NULL,
    tool_name    text NOT NULL,
    args         json NOT NULL,
    effect       text NOT NULL,
    phase        text NOT NULL CHECK (phase IN ('planned', 'dispatched', 'done')),
    state        text NOT NULL DEFAULT '',
    result       json,
    error_type   text NOT NULL DEFAULT '',
    summary      text NOT NULL DEFAULT '',
    duration_ms  bigint NOT NULL DEFAULT 0,
    deadline     timestamptz NOT NULL,
    planned_at   timestamptz NOT NULL,
    done_at      timestamptz,
    CONSTRAINT tool_calls_place UNIQUE (run_id, step_index, call_index)
);

-- What people want of a run that is under way. Rows first, nudges second.
CREATE TABLE run_inbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id uuid NOT NULL,
    run_id       uuid NOT NULL REFERENCES runs ON DELETE CASCADE,
    kind         text NOT NULL CHECK (kind IN ('stop', 'steer', 'approval')),
    message_id   uuid,
    created_by   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    read_at      timestamptz
);
CREATE INDEX run_inbox_run ON run_inbox (run_id, id);

-- What each step cost, for ever: sessions may be deleted.
CREATE TABLE usage (
    run_id             uuid NOT NULL,
    step_index         integer NOT NULL,
    workspace_id       uuid NOT NULL,
    member_id          uuid NOT NULL,
    provider           text NOT NULL,
    model              text NOT NULL,
    input_tokens       bigint NOT NULL,
    cache_read_tokens  bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    output_tokens      bigint NOT NULL,
    reasoning_tokens   bigint NOT NULL,
    tool_calls         integer NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, step_index)
);
CREATE INDEX usage_by_time ON usage (workspace_id, created_at);

-- Messages for the bus that must be said if, and only if, their transaction committed.
CREATE TABLE outbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id uuid NOT NULL,
    subject      text NOT NULL,
    message_id   text NOT NULL,
    schema       text NOT NULL,
    payload      bytea NOT NULL,
    -- W3C traceparent of what caused it; empty without a trace
    trace        text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_subject ON outbox (subject);

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['sessions', 'messages', 'runs', 'steps', 'tool_calls', 'run_inbox', 'usage', 'outbox'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY tenant ON %I USING (workspace_id = claim_workspace() OR claim_system())', t);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE outbox, usage, run_inbox, tool_calls, steps, runs, messages, sessions;
