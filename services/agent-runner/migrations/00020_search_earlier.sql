-- +goose Up

-- The words of earlier messages. Not in the transaction that creates the trigger, which locks the
-- table messages. A message that came in between is there twice, which does no harm.
INSERT INTO message_words (message_id, session_id, workspace_id, words)
SELECT id, session_id, workspace_id,
    array_to_tsvector(ARRAY[workspace_word(workspace_id)]) || to_tsvector('simple', coalesce(message_text(content), ''))
FROM messages WHERE role IN ('user', 'assistant');

-- +goose Down
SELECT 1;
