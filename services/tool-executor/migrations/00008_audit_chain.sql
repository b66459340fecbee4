-- The audit of MCP servers gets a row for each tool call that had an effect, in the transaction of
-- its outcome: such rows have a session, and no server. It keeps its name, because the previous
-- version writes to it.
--
-- It becomes a hash chain for each workspace (pkg/hashchain). A trigger makes it, so that
-- what the previous version of the program writes is in it too. Rows that are there already are
-- chained in the order of their time.

-- +goose Up

CREATE TABLE audit_heads (
	workspace_id uuid   PRIMARY KEY,
	sequence     bigint NOT NULL,
	hash         bytea  NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE audit_heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY reading ON audit_heads FOR SELECT USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY adding ON audit_heads FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY changing ON audit_heads FOR UPDATE USING (workspace_id = claim_workspace() OR claim_system());

ALTER TABLE mcp_audit ADD COLUMN sequence bigint, ADD COLUMN prev bytea, ADD COLUMN hash bytea,
	ADD COLUMN session_id uuid, ADD COLUMN run_id uuid, ADD COLUMN tool_call_id text NOT NULL DEFAULT '', ADD COLUMN tool_name text NOT NULL DEFAULT '',
	ALTER COLUMN server_id SET DEFAULT '00000000-0000-0000-0000-000000000000', ALTER COLUMN server_name SET DEFAULT '';
-- Effects are many, changes to servers few.
CREATE INDEX mcp_audit_servers ON mcp_audit (workspace_id, at DESC, id DESC) WHERE session_id IS NULL;
DROP INDEX mcp_audit_newest;

-- +goose StatementBegin
-- A field is preceded by its length, so that no two rows give the same bytes.
CREATE FUNCTION audit_field(v text) RETURNS bytea LANGUAGE sql STABLE AS $$
	SELECT int4send(octet_length(convert_to(coalesce(v, ''), 'UTF8'))) || convert_to(coalesce(v, ''), 'UTF8')
$$;

CREATE FUNCTION audit_hash(a mcp_audit) RETURNS bytea LANGUAGE sql STABLE AS $$
	SELECT sha256(a.prev || audit_field(a.workspace_id::text) || audit_field(a.sequence::text) || audit_field(a.id::text)
		|| audit_field(((extract(epoch FROM a.at) * 1000000)::bigint)::text)
		|| audit_field(a.member_id::text) || audit_field(a.action) || audit_field(a.server_id::text) || audit_field(a.server_name)
		|| audit_field(a.detail) || audit_field(a.session_id::text) || audit_field(a.run_id::text) || audit_field(a.tool_call_id)
		|| audit_field(a.tool_name))
$$;

CREATE FUNCTION chain_audit() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	-- The head stays locked until the end of the transaction.
	INSERT INTO audit_heads AS h (workspace_id, sequence, hash) VALUES (NEW.workspace_id, 1, decode(repeat('00', 32), 'hex'))
		ON CONFLICT (workspace_id) DO UPDATE SET sequence = h.sequence + 1
		RETURNING h.sequence, h.hash INTO NEW.sequence, NEW.prev;
	NEW.at := clock_timestamp();
	NEW.hash := audit_hash(NEW);
	UPDATE audit_heads SET hash = NEW.hash WHERE workspace_id = NEW.workspace_id;
	RETURN NEW;
END $$;

-- Whoever owns the table may change its rows for once; the role has no policy for it.
ALTER TABLE mcp_audit NO FORCE ROW LEVEL SECURITY;
DO $$
DECLARE
	a mcp_audit;
	head audit_heads;
BEGIN
	FOR a IN SELECT * FROM mcp_audit ORDER BY workspace_id, at, id LOOP
		IF head.workspace_id IS DISTINCT FROM a.workspace_id THEN
			head := ROW(a.workspace_id, 0, decode(repeat('00', 32), 'hex'));
		END IF;
		a.sequence := head.sequence + 1;
		a.prev := head.hash;
		head := ROW(a.workspace_id, a.sequence, audit_hash(a));
		UPDATE mcp_audit SET sequence = a.sequence, prev = a.prev, hash = head.hash WHERE id = a.id;
	END LOOP;
END $$;
INSERT INTO audit_heads SELECT DISTINCT ON (workspace_id) workspace_id, sequence, hash FROM mcp_audit ORDER BY workspace_id, sequence DESC;
ALTER TABLE mcp_audit FORCE ROW LEVEL SECURITY;
-- +goose StatementEnd

ALTER TABLE mcp_audit
	ALTER COLUMN sequence SET NOT NULL, ALTER COLUMN prev SET NOT NULL, ALTER COLUMN hash SET NOT NULL,
	ADD CONSTRAINT mcp_audit_sequence UNIQUE (workspace_id, sequence);
CREATE TRIGGER chain BEFORE INSERT ON mcp_audit FOR EACH ROW EXECUTE FUNCTION chain_audit();

-- +goose Down
DROP TRIGGER chain ON mcp_audit;
DROP FUNCTION chain_audit();
DROP FUNCTION audit_hash(mcp_audit);
DROP FUNCTION audit_field(text);
ALTER TABLE mcp_audit DROP COLUMN sequence, DROP COLUMN prev, DROP COLUMN hash,
	DROP COLUMN session_id, DROP COLUMN run_id, DROP COLUMN tool_call_id, DROP COLUMN tool_name,
	ALTER COLUMN server_id DROP DEFAULT, ALTER COLUMN server_name DROP DEFAULT;
CREATE INDEX mcp_audit_newest ON mcp_audit (workspace_id, at DESC, id DESC);
DROP TABLE audit_heads;
