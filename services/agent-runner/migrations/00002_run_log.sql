-- +goose Up

-- A copy of the run log, which the bus keeps for minutes only: each row is a piece
-- of what one claim of a run said to its session's people, events with the numbers
-- first_number to last_number. The order of a session's rows is that of the log.
--
-- There is no foreign key to sessions: its check would lock the session's row for
-- every piece, and with it whoever claims or ends a run. A trigger does the same.
CREATE TABLE run_log (
    session_id     uuid NOT NULL,
    id             bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id   uuid NOT NULL,
    run_ordinal    bigint NOT NULL,
    epoch          bigint NOT NULL,
    first_number   bigint NOT NULL,
    last_number    bigint NOT NULL,
    -- the last event is the end of the run
    ends           boolean NOT NULL,
    -- when the stream that had them was made, in nanoseconds since 1970
    stream_created bigint NOT NULL,
    -- a signalbox.agent.v1.ListEventsResponse
    events         bytea NOT NULL,
    written_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, id)
);
CREATE INDEX run_log_number ON run_log (session_id, run_ordinal, epoch, id, last_number);
-- not BRIN: space is used again and ranges only grow, so that after a day it would
-- not exclude anything
CREATE INDEX run_log_written ON run_log (written_at);
-- a day's rows come and go: vacuum before a fifth of them is dead
ALTER TABLE run_log SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

ALTER TABLE run_log ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_log USING (workspace_id = claim_workspace() OR claim_system());

-- How far each stream is copied. It moves in the transaction that writes the rows,
-- so that nothing is copied twice or left out.
CREATE TABLE run_log_positions (
    stream         text PRIMARY KEY,
    stream_created bigint NOT NULL,
    sequence       bigint NOT NULL,
    moved_at       timestamptz NOT NULL DEFAULT now()
);

-- A deleted session takes its log with it. The lock waits for copies on their way,
-- which may have seen the session; those that come later do not see it.
-- +goose StatementBegin
CREATE FUNCTION forget_run_log() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM run_log_positions FOR SHARE;
    DELETE FROM run_log WHERE workspace_id = OLD.workspace_id AND session_id = OLD.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER forget_run_log AFTER DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION forget_run_log();

-- +goose Down
DROP TRIGGER forget_run_log ON sessions;
DROP FUNCTION forget_run_log();
DROP TABLE run_log_positions, run_log;
