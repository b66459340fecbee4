-- +goose Up

-- Tools that clients of the API declare and run themselves: an array of objects with name,
-- description and input_schema. NULL: none, and of a run those of its session.
ALTER TABLE sessions ADD COLUMN client_tools json;
ALTER TABLE runs ADD COLUMN client_tools json;

-- A call of such a tool is planned until a client has sent its result: question 'client', with
-- the decision 'answered'.
ALTER TABLE tool_calls
    DROP CONSTRAINT tool_calls_question_check,
    DROP CONSTRAINT tool_calls_decision_check,
    ADD CONSTRAINT tool_calls_question_check CHECK (question IN ('', 'approval', 'outcome', 'client')),
    ADD CONSTRAINT tool_calls_decision_check
        CHECK (decision IN ('', 'approved', 'refused', 'answered', 'expired', 'happened', 'repeat', 'rule'));

-- +goose Down
-- The version before asks a person to approve the calls that wait, and has no tool to run them.
UPDATE tool_calls SET question = 'approval', decision = CASE decision WHEN 'answered' THEN 'approved' ELSE decision END
WHERE question = 'client';
ALTER TABLE tool_calls
    DROP CONSTRAINT tool_calls_question_check,
    DROP CONSTRAINT tool_calls_decision_check,
    ADD CONSTRAINT tool_calls_question_check CHECK (question IN ('', 'approval', 'outcome')),
    ADD CONSTRAINT tool_calls_decision_check
        CHECK (decision IN ('', 'approved', 'refused', 'expired', 'happened', 'repeat', 'rule'));
ALTER TABLE runs DROP COLUMN client_tools;
ALTER TABLE sessions DROP COLUMN client_tools;
