-- +goose Up

-- Running time as a budget: what runners work on runs, without what runs wait for people.
ALTER TABLE budgets ADD COLUMN seconds bigint CHECK (seconds >= 0);
ALTER TABLE budgets ADD CONSTRAINT budgets_limits CHECK (num_nonnulls(tokens, cost_micros, steps, seconds) > 0);
-- +goose StatementBegin
DO $$
DECLARE old text;
BEGIN
    SELECT conname INTO STRICT old FROM pg_constraint
    WHERE conrelid = 'budgets'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%num_nonnulls(tokens, cost_micros, steps)%';
    EXECUTE format('ALTER TABLE budgets DROP CONSTRAINT %I', old);
END $$;
-- +goose StatementEnd
ALTER TABLE budget_use ADD COLUMN milliseconds bigint NOT NULL DEFAULT 0;

-- The day of the reservation, which its step is counted on even if it ends on the next.
ALTER TABLE runs ADD COLUMN reserved_day date;

-- What was counted for sessions that have been deleted, and for their runs.
DELETE FROM budget_use u USING budgets b
WHERE b.id = u.budget_id AND (b.scope = 'session' AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = u.subject)
    OR b.scope = 'run' AND NOT EXISTS (SELECT FROM runs r WHERE r.id = u.subject));

-- +goose Down
ALTER TABLE runs DROP COLUMN reserved_day;
ALTER TABLE budget_use DROP COLUMN milliseconds;
DELETE FROM budgets WHERE num_nonnulls(tokens, cost_micros, steps) = 0;
ALTER TABLE budgets DROP CONSTRAINT budgets_limits;
ALTER TABLE budgets ADD CHECK (num_nonnulls(tokens, cost_micros, steps) > 0);
ALTER TABLE budgets DROP COLUMN seconds;
