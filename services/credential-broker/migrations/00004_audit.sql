-- The audit becomes a chain for each workspace: rows have a number without gaps, the
-- hash of the row before, and a hash over that and their own fields. The newest number
-- and hash stand in a head, whose row lock has writers wait for each other. It is the
-- last lock that a transaction takes: after accounts, grants and logins.
--
-- The chain is made by a trigger, so that what the previous version of the program
-- writes is in it too. Rows that are there already are chained in the order of their
-- time. internal/audit computes the same hashes and verifies them.

-- +goose Up

-- Of a refresh token that was brought along from elsewhere, a hash: once it is rotated,
-- nobody can tell otherwise that it was.
ALTER TABLE accounts ADD COLUMN imported bytea;

-- The account that somebody switched to, and when: every instance does so once.
ALTER TABLE pools ADD COLUMN current_account uuid, ADD COLUMN current_at timestamptz,
    ALTER COLUMN settings SET DEFAULT '{}';
-- When somebody made the account healthy: every instance does so once.
ALTER TABLE account_health ADD COLUMN reset_at timestamptz;

CREATE TABLE audit_heads (
    workspace_id uuid NOT NULL PRIMARY KEY,
    sequence     bigint NOT NULL,
    hash         bytea NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE audit_heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON audit_heads FOR SELECT USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON audit_heads FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON audit_heads FOR UPDATE USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE audit
    ADD COLUMN detail   text NOT NULL DEFAULT '', -- what was changed
    ADD COLUMN sequence bigint,
    ADD COLUMN prev     bytea,
    ADD COLUMN hash     bytea;

-- +goose StatementBegin
-- A field is preceded by its length, so that no two rows give the same bytes.
CREATE FUNCTION audit_field(v text) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT int4send(octet_length(convert_to(v, 'UTF8'))) || convert_to(v, 'UTF8')
$$;

CREATE FUNCTION audit_hash(a audit) RETURNS bytea LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT sha256(a.prev
        || audit_field(a.workspace_id::text) || audit_field(a.sequence::text) || audit_field(a.id::text)
        || audit_field(((extract(epoch FROM a.at) * 1000000)::bigint)::text)
        || audit_field(a.action) || audit_field(a.account_id::text) || audit_field(a.provider) || audit_field(a.origin)
        || audit_field(coalesce(a.member_id::text, '')) || audit_field(a.service) || audit_field(a.address)
        || audit_field(a.session_id::text) || audit_field(a.detail))
$$;

CREATE FUNCTION chain_audit() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    head audit_heads;
BEGIN
    -- Most uses are not the first, and wait for nobody.
    IF NEW.action = 'used' AND EXISTS (SELECT FROM audit WHERE workspace_id = NEW.workspace_id
            AND account_id = NEW.account_id AND session_id = NEW.session_id AND action = 'used') THEN
        RETURN NULL;
    END IF;
    SELECT * INTO head FROM audit_heads WHERE workspace_id = NEW.workspace_id FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO audit_heads (workspace_id, sequence, hash) VALUES (NEW.workspace_id, 0, decode(repeat('00', 32), 'hex'))
            ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT head FROM audit_heads WHERE workspace_id = NEW.workspace_id FOR UPDATE;
    END IF;
    -- Somebody may have written it while this waited: a number must not be spent on
    -- a row that is not inserted.
    IF NEW.action = 'used' AND EXISTS (SELECT FROM audit WHERE workspace_id = NEW.workspace_id
            AND account_id = NEW.account_id AND session_id = NEW.session_id AND action = 'used') THEN
        RETURN NULL;
    END IF;
    NEW.at := clock_timestamp();
    NEW.sequence := head.sequence + 1;
    NEW.prev := head.hash;
    NEW.hash := audit_hash(NEW);
    UPDATE audit_heads SET sequence = NEW.sequence, hash = NEW.hash WHERE workspace_id = NEW.workspace_id;
    RETURN NEW;
END $$;

-- Whoever owns the table may change its rows for once; the role has no policy for it.
ALTER TABLE audit NO FORCE ROW LEVEL SECURITY;
DO $$
DECLARE
    a audit;
    head audit_heads;
BEGIN
    FOR a IN SELECT * FROM audit ORDER BY workspace_id, at, id LOOP
        IF head.workspace_id IS DISTINCT FROM a.workspace_id THEN
            head := ROW(a.workspace_id, 0, decode(repeat('00', 32), 'hex'));
        END IF;
        a.sequence := head.sequence + 1;
        a.prev := head.hash;
        a.hash := audit_hash(a);
        UPDATE audit SET sequence = a.sequence, prev = a.prev, hash = a.hash WHERE workspace_id = a.workspace_id AND id = a.id;
        head := ROW(a.workspace_id, a.sequence, a.hash);
        INSERT INTO audit_heads (workspace_id, sequence, hash) VALUES (a.workspace_id, a.sequence, a.hash)
            ON CONFLICT (workspace_id) DO UPDATE SET sequence = EXCLUDED.sequence, hash = EXCLUDED.hash;
    END LOOP;
END $$;
ALTER TABLE audit FORCE ROW LEVEL SECURITY;
-- +goose StatementEnd

ALTER TABLE audit
    ALTER COLUMN sequence SET NOT NULL, ALTER COLUMN prev SET NOT NULL, ALTER COLUMN hash SET NOT NULL,
    ADD CONSTRAINT audit_sequence UNIQUE (workspace_id, sequence);
CREATE TRIGGER chain BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION chain_audit();

-- +goose Down
DROP TRIGGER chain ON audit;
DROP FUNCTION chain_audit();
DROP FUNCTION audit_hash(audit);
DROP FUNCTION audit_field(text);
ALTER TABLE audit DROP COLUMN detail, DROP COLUMN sequence, DROP COLUMN prev, DROP COLUMN hash;
DROP TABLE audit_heads;
ALTER TABLE account_health DROP COLUMN reset_at;
ALTER TABLE pools ALTER COLUMN settings DROP DEFAULT, DROP COLUMN current_account, DROP COLUMN current_at;
ALTER TABLE accounts DROP COLUMN imported;
