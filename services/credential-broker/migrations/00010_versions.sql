-- +goose Up

-- Each state of a row that matters to a broker has a number that no other state of any row
-- has or will have: two sets of numbers are equal exactly when the rows are. Brokers find
-- out by them which pools have changed. A version that knows nothing of the column gets its
-- numbers from the default and the triggers.
CREATE SEQUENCE row_versions;

-- +goose StatementBegin
CREATE FUNCTION next_row_version() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.version := nextval('row_versions');
    RETURN NEW;
END $$;
-- +goose StatementEnd

ALTER TABLE accounts ADD COLUMN version bigint NOT NULL DEFAULT nextval('row_versions');
CREATE TRIGGER version BEFORE UPDATE ON accounts FOR EACH ROW
    WHEN ((OLD.provider, OLD.enabled, OLD.flat_rate, OLD.key_version, OLD.sealed, OLD.profile, OLD.base_url)
        IS DISTINCT FROM (NEW.provider, NEW.enabled, NEW.flat_rate, NEW.key_version, NEW.sealed, NEW.profile, NEW.base_url))
    EXECUTE FUNCTION next_row_version();

ALTER TABLE pools ADD COLUMN version bigint NOT NULL DEFAULT nextval('row_versions');
CREATE TRIGGER version BEFORE UPDATE ON pools FOR EACH ROW
    WHEN ((OLD.settings, OLD.current_account, OLD.current_at) IS DISTINCT FROM (NEW.settings, NEW.current_account, NEW.current_at))
    EXECUTE FUNCTION next_row_version();

ALTER TABLE account_limits ADD COLUMN version bigint NOT NULL DEFAULT nextval('row_versions');
CREATE TRIGGER version BEFORE UPDATE ON account_limits FOR EACH ROW
    WHEN ((OLD.at, OLD.until) IS DISTINCT FROM (NEW.at, NEW.until))
    EXECUTE FUNCTION next_row_version();

ALTER TABLE account_health ADD COLUMN version bigint NOT NULL DEFAULT nextval('row_versions');
CREATE TRIGGER version BEFORE UPDATE ON account_health FOR EACH ROW
    WHEN (OLD.reset_at IS DISTINCT FROM NEW.reset_at)
    EXECUTE FUNCTION next_row_version();

-- +goose Down
DROP TRIGGER version ON account_health;
ALTER TABLE account_health DROP COLUMN version;
DROP TRIGGER version ON account_limits;
ALTER TABLE account_limits DROP COLUMN version;
DROP TRIGGER version ON pools;
ALTER TABLE pools DROP COLUMN version;
DROP TRIGGER version ON accounts;
ALTER TABLE accounts DROP COLUMN version;
DROP FUNCTION next_row_version();
DROP SEQUENCE row_versions;
