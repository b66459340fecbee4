-- +goose Up

-- The text of a message, as far as it is searched: the first 20,000 characters. '' if its JSON has
-- characters that PostgreSQL cannot hold.
-- +goose StatementBegin
CREATE FUNCTION message_text(content json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF json_typeof(content) = 'string' THEN
        RETURN left(content #>> '{}', 20000);
    END IF;
    RETURN left((SELECT string_agg(part ->> 'text', E'\n') FROM json_array_elements(content) part WHERE part ->> 'type' = 'text'), 20000);
EXCEPTION WHEN data_exception THEN
    RETURN '';
END $$;
-- +goose StatementEnd

-- A word that only the rows of one workspace have, so that the index finds the words of one
-- workspace without reading those of others.
CREATE FUNCTION workspace_word(workspace uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'workspace:' || workspace::text $$;

-- What the transaction searches for, in its own workspace. NULL, which finds nothing, without claims.
CREATE FUNCTION claim_search() RETURNS tsquery LANGUAGE sql STABLE AS $$
    SELECT quote_literal(workspace_word(claim_workspace()))::tsquery && nullif(current_setting('signalbox.search', true), '')::tsquery
$$;

-- The words of what people and models said.
CREATE TABLE message_words (
    message_id   uuid NOT NULL REFERENCES messages ON DELETE CASCADE,
    session_id   uuid NOT NULL,
    workspace_id uuid NOT NULL,
    words        tsvector NOT NULL
);
CREATE INDEX message_words_message ON message_words (message_id);
CREATE INDEX message_words_words ON message_words USING gin (words) WITH (gin_pending_list_limit = 512); -- small, because an insert that finds it full empties it
ALTER TABLE message_words ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- The search is part of the policy because PostgreSQL checks a policy before it calls a function that
-- is not leakproof, as the match of words: a search in a query could not use the index.
CREATE POLICY searching ON message_words FOR SELECT USING (words @@ claim_search() AND workspace_id = claim_workspace());
CREATE POLICY adding ON message_words FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());

-- +goose StatementBegin
CREATE FUNCTION index_message() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO message_words (message_id, session_id, workspace_id, words)
    VALUES (NEW.id, NEW.session_id, NEW.workspace_id,
        array_to_tsvector(ARRAY[workspace_word(NEW.workspace_id)]) || to_tsvector('simple', coalesce(message_text(NEW.content), '')));
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER index_message AFTER INSERT ON messages FOR EACH ROW WHEN (NEW.role IN ('user', 'assistant')) EXECUTE FUNCTION index_message();

-- +goose Down
DROP TRIGGER index_message ON messages;
DROP TABLE message_words;
DROP FUNCTION index_message();
DROP FUNCTION claim_search();
DROP FUNCTION workspace_word(uuid);
DROP FUNCTION message_text(json);
