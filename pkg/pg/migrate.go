package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"signalbox.dev/pkg/conf"
)

// Migrations is what one service brings to the database: its schema, the role
// it connects as, and its goose files (*.sql at the root of FS; with no FS the
// schema stays empty).
type Migrations struct {
	Schema, Role string
	FS           fs.FS
	// AppendOnly are tables whose rows the role may neither change nor delete.
	AppendOnly []string
	// Password makes the role a login with this password (printable ASCII). When
	// empty the role's login stays as it is: none for a new role, which is then
	// reached by a login that is a member of it.
	Password conf.Secret
}

// versionTable is goose's; it is the administrator's and no service reads it.
const versionTable = "goose_db_version"

// oldest is the first major version of the server that our SQL works with.
const oldest = 15

// migrationLock is the advisory lock that lets one migrator at a time into a
// database. The number is arbitrary and must never change.
const migrationLock = 0x5167_6e61_6c62_6f78

// Migrate brings each service's role, schema, claim functions, tables and
// rights up to date, in the order given. It is idempotent, and two migrators of
// one database wait for each other. adminURL names a superuser, or a user with
// CREATEROLE and CREATE on the database. If it dies here, the migration at work
// is rolled back (unless its file says NO TRANSACTION), and running it again goes on.
// When a schema has a migration that its FS does not, a newer program has been at
// work: then nothing is changed, and the error says so.
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
	if _, err := db.ExecContext(ctx, "select pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return fmt.Errorf("migrate: wait for the lock: %w", err)
	}
	var version int
	if err := db.QueryRowContext(ctx, "select current_setting('server_version_num')::int / 10000").Scan(&version); err != nil {
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

// parseAdmin reads an administrator's URL without showing it in errors.
func parseAdmin(adminURL string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(adminURL)
	if adminURL == "" || err != nil {
		return nil, errors.New("the administrator's database URL (DATABASE_URL) does not parse: want postgres://user:password@host:5432/database, with special characters of the password percent-encoded")
	}
	cfg.ConnectTimeout = connectTimeout
	cfg.RuntimeParams["application_name"] = "signalbox administration"
	cfg.RuntimeParams["client_min_messages"] = "warning" // "already exists, skipping" is no news
	return cfg, nil
}

// openAdmin returns a pool of exactly one connection, so that the lock, the
// search_path and goose's work share one session.
func openAdmin(cfg *pgx.ConnConfig) *sql.DB {
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	return db
}

// refuseNewer returns an error when the schema has a later migration than the last of m.
func refuseNewer(ctx context.Context, db *sql.DB, m Migrations) error {
	known, err := lastMigration(m)
	if err != nil {
		return err
	}
	table := m.Schema + "." + versionTable
	var exists bool
	if err := db.QueryRowContext(ctx, "select to_regclass($1) is not null", table).Scan(&exists); err != nil || !exists {
		return err
	}
	var applied int64
	if err := db.QueryRowContext(ctx, "select coalesce(max(version_id), 0) from "+table).Scan(&applied); err != nil {
		return fmt.Errorf("read its version: %w", err)
	}
	if applied > known {
		return fmt.Errorf("the database has its migration %d, and this program knows them up to %d: a newer version of Signalbox has used it. "+
			"Run that version or a newer one, or restore a backup from before; nothing was changed", applied, known)
	}
	return nil
}

// lastMigration returns the highest number of m's files, 0 without any.
func lastMigration(m Migrations) (last int64, err error) {
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

// provider returns goose for one service, over the session whose search_path is
// the service's schema.
func provider(db *sql.DB, m Migrations) (*goose.Provider, error) {
	return goose.NewProvider(database.DialectPostgres, db, m.FS,
		goose.WithTableName(m.Schema+"."+versionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(slog.New(slog.DiscardHandler)), // up logs what happened, once
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
	applied, err := p.Up(ctx)
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

// prepareSQL makes the schema and the functions that policies read, and turns
// the session to them. CREATE OR REPLACE keeps the policies that use a function.
func prepareSQL(schema string) string {
	return `
create schema if not exists ` + schema + `;
create or replace function ` + schema + `.claim_workspace() returns uuid language sql stable parallel safe
	as $$ select nullif(current_setting('signalbox.workspace', true), '')::uuid $$;
create or replace function ` + schema + `.claim_member() returns uuid language sql stable parallel safe
	as $$ select nullif(current_setting('signalbox.member', true), '')::uuid $$;
create or replace function ` + schema + `.claim_system() returns boolean language sql stable parallel safe
	as $$ select coalesce(current_setting('signalbox.system', true) = 'on', false) $$;
select set_config('search_path', '` + schema + `', false), set_config('signalbox.system', 'on', false);
`
}

// grantSQL gives the role its rights on what is there and on what this
// administrator makes later. Rights are only written where they are missing.
func grantSQL(m Migrations) string {
	schema, role := m.Schema, m.Role
	var appendOnly strings.Builder
	for _, table := range m.AppendOnly {
		fmt.Fprintf(&appendOnly, "revoke update, delete on %s.%s from %s;\n", schema, table, role)
	}
	return `
grant usage on schema ` + schema + ` to ` + role + `;
grant select, insert, update, delete on all tables in schema ` + schema + ` to ` + role + `;
grant usage, select on all sequences in schema ` + schema + ` to ` + role + `;
alter default privileges in schema ` + schema + ` grant select, insert, update, delete on tables to ` + role + `;
alter default privileges in schema ` + schema + ` grant usage, select on sequences to ` + role + `;
do $$ begin
	if to_regclass('` + schema + `.` + versionTable + `') is not null then
		revoke all on ` + schema + `.` + versionTable + ` from ` + role + `;
		revoke all on sequence ` + schema + `.` + versionTable + `_id_seq from ` + role + `;
	end if;
end $$;
` + appendOnly.String()
}

// ensureRole makes the role, lets the administrator become it, and sets its
// password. Roles belong to the whole cluster, where the advisory lock of one
// database does not help: other databases' migrators do the same at the same time.
func ensureRole(ctx context.Context, db *sql.DB, m Migrations) error {
	create := `do $$ begin
	if not exists (select from pg_roles where rolname = '` + m.Role + `') then
		create role ` + m.Role + ` nologin nosuperuser nobypassrls nocreatedb nocreaterole;
	end if;
exception when duplicate_object or unique_violation then null;
end $$`
	if _, err := db.ExecContext(ctx, create); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	// Since version 16 membership alone does not allow SET ROLE.
	join := `do $$ begin
	if current_setting('server_version_num')::int >= 160000 then
		if not pg_has_role(current_user, '` + m.Role + `', 'SET') then
			execute 'grant ` + m.Role + ` to current_user with inherit true, set true';
		end if;
	elsif not pg_has_role(current_user, '` + m.Role + `', 'MEMBER') then
		grant ` + m.Role + ` to current_user;
	end if;
exception when unique_violation then null;
end $$`
	if err := whileOthersWrite(ctx, db, join); err != nil {
		return fmt.Errorf("grant it to the administrator: %w", err)
	}
	if m.Password == "" {
		return nil
	}
	verifier, err := scramVerifier(m.Password.Reveal())
	if err != nil {
		return err
	}
	if err := whileOthersWrite(ctx, db, "alter role "+m.Role+" login password '"+verifier+"'"); err != nil {
		return fmt.Errorf("set its password: %w", err)
	}
	return nil
}

// whileOthersWrite repeats a statement on a shared catalogue that another
// database's migrator writes at the same moment.
func whileOthersWrite(ctx context.Context, db *sql.DB, statement string) error {
	for attempt := 0; ; attempt++ {
		_, err := db.ExecContext(ctx, statement)
		e, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || e.Message != "tuple concurrently updated" || attempt == 20 {
			return err
		}
	}
}
