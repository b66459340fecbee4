-- +goose Up

-- What every commit of a claim begins with: it locks the session and then the run, and
-- ends the transaction when the claim does not hold any more (SB001), or when the step
-- is in that state already, or complete (SB002): the answer to the first try was lost.
-- An empty state stands for a commit that may be repeated.
-- +goose StatementBegin
CREATE FUNCTION fence(workspace uuid, session uuid, run uuid, claim bigint, step integer, becomes text)
    RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM sessions WHERE workspace_id = workspace AND id = session FOR UPDATE;
    PERFORM 1 FROM runs WHERE workspace_id = workspace AND id = run AND epoch = claim AND state = 'running' FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim does not hold any more' USING ERRCODE = 'SB001';
    END IF;
    IF becomes <> '' AND EXISTS (
        SELECT FROM steps WHERE workspace_id = workspace AND run_id = run AND step_index = step AND state IN (becomes, 'complete')
    ) THEN
        RAISE EXCEPTION 'the step is committed' USING ERRCODE = 'SB002';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION fence(uuid, uuid, uuid, bigint, integer, text);
