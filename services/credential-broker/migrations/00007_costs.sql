-- +goose Up

-- Whether an account is paid by the month and not by the token: its use costs nothing.
ALTER TABLE accounts ADD COLUMN flat_rate boolean NOT NULL DEFAULT false;

-- A refresh token that was brought along is one account: two that renew it would have a
-- provider take the second for a thief. Of those that are there twice the first counts.
ALTER TABLE accounts NO FORCE ROW LEVEL SECURITY;
UPDATE accounts a SET imported = NULL WHERE EXISTS (
    SELECT FROM accounts b WHERE b.workspace_id = a.workspace_id AND b.imported = a.imported AND (b.created_at, b.id) < (a.created_at, a.id));
ALTER TABLE accounts FORCE ROW LEVEL SECURITY;
CREATE UNIQUE INDEX accounts_imported ON accounts (workspace_id, imported);

-- +goose Down
DROP INDEX accounts_imported;
ALTER TABLE accounts DROP COLUMN flat_rate;
