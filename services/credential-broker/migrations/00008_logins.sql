-- +goose Up

-- What a login is for, and what became of it. A row that has ended stays for a while, so
-- that whoever has not heard the answer can ask again; it holds no secret then.
ALTER TABLE logins
    -- '' of a row that the version before has written: for either
    ADD COLUMN purpose text NOT NULL DEFAULT '' CHECK (purpose IN ('', 'account', 'connection')),
    ADD COLUMN ended_at timestamptz,
    -- why an ended one brought no account; '' of one that did
    ADD COLUMN code text NOT NULL DEFAULT '',
    ADD COLUMN reason text NOT NULL DEFAULT '',
    ALTER COLUMN sealed DROP NOT NULL,
    ALTER COLUMN key_version DROP NOT NULL,
    ADD CONSTRAINT logins_sealed CHECK ((sealed IS NULL) = (ended_at IS NOT NULL) AND (key_version IS NULL) = (ended_at IS NOT NULL));

-- +goose Down
-- Whoever has begun to sign in begins again.
TRUNCATE logins;
ALTER TABLE logins
    DROP CONSTRAINT logins_sealed,
    ALTER COLUMN key_version SET NOT NULL,
    ALTER COLUMN sealed SET NOT NULL,
    DROP COLUMN reason,
    DROP COLUMN code,
    DROP COLUMN ended_at,
    DROP COLUMN purpose;
