package pg

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"signalbox.dev/pkg/conf"
)

// Migrations are a service's part of the database: its schema, the role it connects as, and
// its goose files (*.sql at the root of FS; without FS the schema stays empty).
type Migrations struct {
	Schema, Role string
	FS           fs.FS
	// Through is the number of the last file to apply; 0 applies all.
	Through int64
	// AppendOnly lists tables whose rows the role may neither update nor delete.
	AppendOnly []string
	// Derived has tables that backups leave out, by their names, and for each of them the trigger
	// that fills it when rows of another table are inserted.
	Derived map[string]string
	// Password makes the role a login with this password (printable ASCII). If it is empty,
	// the role's login stays as it is. A new role has none, and serves a login that is a
	// member of it.
	Password conf.Secret
}

// VersionTable is the table of each schema that has the numbers of the applied files. Only the
// administrator may read it.
const VersionTable = "goose_db_version"

// oldest is the oldest supported major version of the server.
const oldest = 15

// ErrNewer is in the chain of Migrate's error if the database has a migration that the program
// lacks.
var ErrNewer = errors.New("a newer version of Signalbox has used it")

// migrationLock is the advisory lock that admits one migrator at a time to a database. The
// number is arbitrary and must never change.
const migrationLock = 0x5167_6e61_6c62_6f78

// Migrate brings each service's role, schema, claim functions, tables and rights up to date,
// in the order given. It is idempotent, and concurrent migrators of a database wait for each
// other. adminURL names a superuser, or a user with CREATEROLE and CREATE on the database. If
// the process dies here, the running migration is rolled back (unless its file says NO
// TRANSACTION), and the next call continues. If a schema has a migration that FS lacks, a
// newer program has used it: Migrate changes nothing and returns ErrNewer.
func Migrate(ctx context.Context, adminURL string, log *slog.Logger, all ...Migrations) error {
	for _, m := range all {
		if err := errors.Join(checkName("schema", m.Schema), checkName("role", m.Role)); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	db := openAdmin(cfg)
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("migrate: %w", unreachable(&cfg.Config, err))
	}
	// The lock belongs to the session; closing the only connection releases it.
	if _, err := db.ExecContext(ctx, "SELECT pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return fmt.Errorf("migrate: wait for the lock: %w", err)
	}
	var version int
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&version); err != nil {
		return fmt.Errorf("migrate: ask for the server's version: %w", err)
	}
	if version < oldest {
		return fmt.Errorf("migrate: the server is PostgreSQL %d; version %d or newer is needed", version, oldest)
	}
	for _, m := range all {
		if err := refuseNewer(ctx, db, m); err != nil {
			return fmt.Errorf("migrate schema %s: %w", m.Schema, err)
		}
	}
	for _, m := range all {
		if err := migrateOne(ctx, db, log, m); err != nil {
			return fmt.Errorf("migrate schema %s: %w", m.Schema, err)
		}
	}
	return nil
}

// parseAdmin parses an administrator's URL. Its errors do not contain the URL. Connections fail
// if they go through a pooler: migrations change settings of their session.
func parseAdmin(adminURL string) (*pgx.ConnConfig, error) {
	cfg, err := parseURL("DATABASE_URL", conf.Secret(adminURL))
	if err != nil {
		return nil, err
	}
	cc := cfg.ConnConfig
	cc.RuntimeParams["application_name"] = "signalbox administration"
	requireSession(cc)
	return cc, nil
}

// openAdmin returns a pool of exactly one connection, so that the lock, the search_path and
// goose share a session.
func openAdmin(cfg *pgx.ConnConfig) *sql.DB {
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	return db
}

// refuseNewer returns an error if the schema has a newer migration than m.
func refuseNewer(ctx context.Context, db *sql.DB, m Migrations) error {
	known, err := m.Last()
	if err != nil {
		return err
	}
	table := m.Schema + "." + VersionTable
	var exists bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil || !exists {
		return err
	}
	var applied int64
	if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+table).Scan(&applied); err != nil {
		return fmt.Errorf("read its version: %w", err)
	}
	if applied > known {
		return fmt.Errorf("the database has migration %d, and this program knows migrations up to %d: %w. "+
			"Run that version or a newer one, or restore an older backup; nothing was changed", applied, known, ErrNewer)
	}
	return nil
}

// Last returns the highest number of the files, 0 if there are none.
func (m Migrations) Last() (last int64, err error) {
	if m.FS == nil {
		return 0, nil
	}
	names, err := fs.Glob(m.FS, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	for _, name := range names {
		n, err := goose.NumericComponent(name)
		if err != nil { // goose would skip it
			return 0, fmt.Errorf("migration %s: want a name like 00001_what.sql: %w", name, err)
		}
		last = max(last, n)
	}
	return last, nil
}

func migrateOne(ctx context.Context, db *sql.DB, log *slog.Logger, m Migrations) error {
	if err := ensureRole(ctx, db, m); err != nil {
		return fmt.Errorf("role %s: %w", m.Role, err)
	}
	if err := storeSettings(ctx, db, log, m); err != nil {
		return fmt.Errorf("settings of role %s: %w", m.Role, err)
	}
	if _, err := db.ExecContext(ctx, prepareSQL(m.Schema)); err != nil {
		return fmt.Errorf("schema and claim functions: %w", err)
	}
	if m.FS != nil {
		if err := up(ctx, db, log, m); err != nil {
			return err
		}
	}
	if _, err := db.ExecContext(ctx, grantSQL(m)); err != nil {
		return fmt.Errorf("grant rights: %w", err)
	}
	return nil
}

// provider returns goose for one service. The session's search_path is the service's schema.
func provider(db *sql.DB, m Migrations) (*goose.Provider, error) {
	return goose.NewProvider(database.DialectPostgres, db, m.FS,
		goose.WithTableName(m.Schema+"."+VersionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(slog.New(slog.DiscardHandler)), // up logs instead
	)
}

func up(ctx context.Context, db *sql.DB, log *slog.Logger, m Migrations) error {
	p, err := provider(db, m)
	if errors.Is(err, goose.ErrNoMigrations) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	applied, err := p.UpTo(ctx, cmp.Or(m.Through, math.MaxInt64))
	partial, failed := errors.AsType[*goose.PartialError](err)
	if failed {
		applied = partial.Applied
		err = fmt.Errorf("apply %s: %w", partial.Failed.Source.Path, partial.Err)
	}
	for _, r := range applied {
		log.InfoContext(ctx, "migration applied", "schema", m.Schema, "file", r.Source.Path, "took", r.Duration.Round(time.Millisecond))
	}
	return err
}

// prepareSQL creates the schema and its claim functions, and sets the session's search_path
// and claim. CREATE OR REPLACE keeps the policies that use a function.
func prepareSQL(schema string) string {
	return `
CREATE SCHEMA IF NOT EXISTS ` + schema + `;
CREATE OR REPLACE FUNCTION ` + schema + `.claim_workspace() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
	AS $$ SELECT nullif(current_setting('signalbox.workspace', true), '')::uuid $$;
CREATE OR REPLACE FUNCTION ` + schema + `.claim_member() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
	AS $$ SELECT nullif(current_setting('signalbox.member', true), '')::uuid $$;
CREATE OR REPLACE FUNCTION ` + schema + `.claim_system() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
	AS $$ SELECT coalesce(current_setting('signalbox.system', true) = 'on', false) $$;
SELECT set_config('search_path', '` + schema + `', false), set_config('signalbox.system', 'on', false);
`
}

// grantSQL grants the role its rights on existing tables and sequences, and on those that
// this administrator creates later.
func grantSQL(m Migrations) string {
	schema, role := m.Schema, m.Role
	var appendOnly strings.Builder
	for _, table := range m.AppendOnly {
		fmt.Fprintf(&appendOnly, "IF to_regclass('%[1]s.%[2]s') IS NOT NULL THEN REVOKE UPDATE, DELETE ON %[1]s.%[2]s FROM %[3]s; END IF;\n", schema, table, role)
	}
	return `
GRANT USAGE ON SCHEMA ` + schema + ` TO ` + role + `;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ` + schema + ` TO ` + role + `;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA ` + schema + ` TO ` + role + `;
ALTER DEFAULT PRIVILEGES IN SCHEMA ` + schema + ` GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO ` + role + `;
ALTER DEFAULT PRIVILEGES IN SCHEMA ` + schema + ` GRANT USAGE, SELECT ON SEQUENCES TO ` + role + `;
DO $$ BEGIN
	IF to_regclass('` + schema + `.` + VersionTable + `') IS NOT NULL THEN
		REVOKE ALL ON ` + schema + `.` + VersionTable + ` FROM ` + role + `;
		REVOKE ALL ON SEQUENCE ` + schema + `.` + VersionTable + `_id_seq FROM ` + role + `;
	END IF;
` + appendOnly.String() + `END $$;
`
}

// ensureRole creates the role, lets the administrator become it, and sets its password.
// Roles belong to the whole cluster: migrators of other databases, which our advisory lock
// does not stop, may do the same at the same time.
func ensureRole(ctx context.Context, db *sql.DB, m Migrations) error {
	create := `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + m.Role + `') THEN
		CREATE ROLE ` + m.Role + ` NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
	END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$`
	if _, err := db.ExecContext(ctx, create); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	// Since version 16 membership alone does not allow SET ROLE.
	join := `DO $$ BEGIN
	IF current_setting('server_version_num')::int >= 160000 THEN
		IF NOT pg_has_role(current_user, '` + m.Role + `', 'SET') THEN
			EXECUTE 'GRANT ` + m.Role + ` TO current_user WITH INHERIT TRUE, SET TRUE';
		END IF;
	ELSIF NOT pg_has_role(current_user, '` + m.Role + `', 'MEMBER') THEN
		GRANT ` + m.Role + ` TO current_user;
	END IF;
EXCEPTION WHEN unique_violation THEN NULL;
END $$`
	if err := retryConcurrent(ctx, db, join); err != nil {
		return fmt.Errorf("grant it to the administrator: %w", err)
	}
	if m.Password == "" {
		return nil
	}
	verifier, err := scramVerifier(m.Password.Reveal())
	if err != nil {
		return err
	}
	if err := retryConcurrent(ctx, db, "ALTER ROLE "+m.Role+" LOGIN PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("set its password: %w", err)
	}
	return nil
}

// storeSettings stores the settings of the service's sessions with its role, for this database.
// Services that reach the server directly make them themselves.
func storeSettings(ctx context.Context, db *sql.DB, log *slog.Logger, m Migrations) error {
	var alter strings.Builder
	for _, s := range settings(m.Schema) {
		fmt.Fprintf(&alter, "EXECUTE format('ALTER ROLE %s IN DATABASE %%I SET %s = %%L', current_database(), '%s');\n", m.Role, s.name, s.value)
	}
	err := retryConcurrent(ctx, db, "DO $$ BEGIN\n"+alter.String()+"END $$")
	if HasCode(err, "42501") { // since version 16 this takes ADMIN OPTION, which whoever created the role has
		log.WarnContext(ctx, "the administrator may not store settings with the role, so the service cannot work through a connection pooler", "role", m.Role, "error", err)
		return nil
	}
	return err
}

// retryConcurrent repeats a statement on a shared catalogue while the migrators of other
// databases update the same row.
func retryConcurrent(ctx context.Context, db *sql.DB, statement string) error {
	for attempt := 0; ; attempt++ {
		_, err := db.ExecContext(ctx, statement)
		e, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || e.Message != "tuple concurrently updated" || attempt == 20 {
			return err
		}
	}
}
