package backup

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// maxManifest bounds the size of a manifest.
const maxManifest = 4 << 20

// errDamaged is the start of errors about files that are not as Write has written them.
var errDamaged = errors.New("the file is no backup, or it is truncated, damaged or was changed")

// Archive is a backup whose content has been verified.
type Archive struct {
	Manifest

	zip   *zip.ReadCloser
	files map[string]*zip.File
}

// Open opens a backup and verifies all of it. The caller closes it.
func Open(ctx context.Context, path string) (*Archive, error) {
	z, err := zip.OpenReader(path)
	if errors.Is(err, zip.ErrFormat) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	a := &Archive{zip: z, files: map[string]*zip.File{}}
	if err := a.verify(ctx); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Close closes the file.
func (a *Archive) Close() { _ = a.zip.Close() } // it was only read

func (a *Archive) verify(ctx context.Context) error {
	for _, f := range a.zip.File {
		if a.files[f.Name] != nil {
			return fmt.Errorf("%w: it has %q twice", errDamaged, f.Name)
		}
		a.files[f.Name] = f
	}
	if err := a.readManifest(); err != nil {
		return err
	}
	delete(a.files, manifestName)
	known := 0
	for _, s := range a.Schemas {
		for _, t := range s.Tables {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			known++
			if err := a.verifyTable(t, s.Name); err != nil {
				return fmt.Errorf("%w: %s: %w", errDamaged, t.file(s.Name), err)
			}
		}
	}
	if known != len(a.files) {
		return fmt.Errorf("%w: it has %d tables, and its manifest has %d", errDamaged, len(a.files), known)
	}
	return nil
}

func (a *Archive) readManifest() error {
	f := a.files[manifestName]
	if f == nil {
		return fmt.Errorf("%w: it has no %s", errDamaged, manifestName)
	}
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err == nil && digest(text) != a.zip.Comment {
		err = fmt.Errorf("%s has another SHA-256", manifestName)
	}
	if err == nil {
		err = json.Unmarshal(text, &a.Manifest)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if a.Format != format {
		return fmt.Errorf("the backup has format %d, and this program reads format %d: use Signalbox %s or newer", a.Format, format, a.Program)
	}
	return nil
}

func (a *Archive) verifyTable(t Table, schema string) error {
	f := a.files[t.file(schema)]
	if f == nil {
		return errors.New("it is missing")
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	c := counter{hash: sha256.New()}
	if _, err := io.Copy(&c, io.LimitReader(r, t.Bytes+1)); err != nil {
		return err
	}
	if c.n != t.Bytes || hex.EncodeToString(c.hash.Sum(nil)) != t.SHA256 {
		return errors.New("it has another SHA-256")
	}
	return nil
}

// Restore fills an empty database. Check is called with the restored rows before they are
// committed; its error undoes them.
func (a *Archive) Restore(ctx context.Context, o Options, log *slog.Logger, check func(context.Context, pgx.Tx) error) error {
	then, err := a.migrations(o.Migrations)
	if err != nil {
		return err
	}
	if err := pg.Migrate(ctx, o.AdminURL, log, then...); err != nil {
		return err
	}
	if err := a.copyAll(ctx, o, then, check); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, o.AdminURL, log, o.Migrations...); err != nil {
		return fmt.Errorf("the data is restored, as of the backup's version; run signalbox migrate: %w", err)
	}
	return nil
}

// migrations returns those that make the backup's tables.
func (a *Archive) migrations(all []pg.Migrations) (then []pg.Migrations, err error) {
	for _, s := range a.Schemas {
		i := slices.IndexFunc(all, func(m pg.Migrations) bool { return m.Schema == s.Name })
		last := int64(0)
		if i >= 0 {
			if last, err = all[i].Last(); err != nil {
				return nil, err
			}
		}
		if s.Migration > last {
			return nil, fmt.Errorf("the backup has migration %d of schema %s, and this program knows migrations up to %d: restore it with Signalbox %s or newer; nothing was changed",
				s.Migration, s.Name, last, a.Program)
		}
		if s.Migration < 1 {
			return nil, fmt.Errorf("%w: schema %s has migration %d", errDamaged, s.Name, s.Migration)
		}
		m := all[i]
		m.Through = s.Migration
		then = append(then, m)
	}
	return then, nil
}

func (a *Archive) copyAll(ctx context.Context, o Options, then []pg.Migrations, check func(context.Context, pgx.Tx) error) error {
	conn, err := pg.OpenAdmin(ctx, o.AdminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // everything is committed
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for i, s := range a.Schemas {
			if err := a.copySchema(ctx, tx, s, then[i], o.progress); err != nil {
				return fmt.Errorf("restore schema %s: %w", s.Name, err)
			}
		}
		return check(ctx, tx)
	})
}

func (a *Archive) copySchema(ctx context.Context, tx pgx.Tx, s Schema, m pg.Migrations, progress func(string)) error {
	applied, err := version(ctx, tx, s.Name)
	if err != nil {
		return err
	}
	tables, err := tablesOf(ctx, tx, m)
	if err != nil {
		return err
	}
	if err := prepare(ctx, tx, tables); err != nil {
		return err
	}
	if applied != s.Migration {
		return fmt.Errorf("the database has migration %d, and the backup migration %d: restore it into a new database", applied, s.Migration)
	}
	saved := map[string]Table{}
	for _, t := range s.Tables {
		saved[t.Name] = t
	}
	for _, t := range tables {
		if t.derivedBy != "" {
			continue
		}
		from, ok := saved[t.Name]
		if delete(saved, t.Name); !ok || !slices.Equal(from.Columns, t.Columns) {
			return fmt.Errorf("%w: table %s is not as in migration %d", errDamaged, t.Name, s.Migration)
		}
		progress(t.qualified())
		if err := a.copyTable(ctx, tx, t, from); err != nil {
			return fmt.Errorf("copy table %s: %w", t.Name, err)
		}
	}
	for name := range saved {
		return fmt.Errorf("%w: there is no table %s in migration %d", errDamaged, name, s.Migration)
	}
	for _, q := range s.Sequences {
		if _, err := tx.Exec(ctx, "SELECT setval(@sequence::regclass, @last, @called)",
			pg.Args{"sequence": pgx.Identifier{s.Name, q.Name}.Sanitize(), "last": q.Last, "called": q.Called}); err != nil {
			return fmt.Errorf("set sequence %s: %w", q.Name, err)
		}
	}
	return finish(ctx, tx, tables)
}

// prepare locks tables, lets their owner copy into them as they are, and checks that they are
// empty.
func prepare(ctx context.Context, tx pgx.Tx, tables []table) error {
	for _, t := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE "+t.qualified()+" NO FORCE ROW LEVEL SECURITY, DISABLE TRIGGER USER"); err != nil {
			return fmt.Errorf("prepare table %s: %w", t.Name, err)
		}
		var used bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+t.qualified()+")").Scan(&used); err != nil {
			return fmt.Errorf("prepare table %s: %w", t.Name, err)
		}
		if used {
			return fmt.Errorf("the database is in use (table %s has rows): restore into an empty database; nothing was changed", t.Name)
		}
	}
	for _, t := range tables {
		if t.derivedBy == "" {
			continue
		}
		_, err := tx.Exec(ctx, `DO $$ DECLARE t pg_trigger; BEGIN
			SELECT * INTO STRICT t FROM pg_trigger WHERE tgname = '`+t.derivedBy+`' AND tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('`+t.Schema+`'));
			EXECUTE format('ALTER TABLE %s ENABLE TRIGGER %I', t.tgrelid::regclass, t.tgname);
		END $$`)
		if err != nil {
			return fmt.Errorf("enable trigger %s: %w", t.derivedBy, err)
		}
	}
	return nil
}

func (a *Archive) copyTable(ctx context.Context, tx pgx.Tx, t table, from Table) error {
	r, err := a.files[from.file(t.Schema)].Open()
	if err != nil {
		return err
	}
	defer r.Close()
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, r, "COPY "+t.qualified()+" ("+t.columns()+") FROM STDIN")
	if err == nil && tag.RowsAffected() != from.Rows {
		err = fmt.Errorf("%w: it has %d rows instead of %d", errDamaged, tag.RowsAffected(), from.Rows)
	}
	return err
}

// finish undoes prepare, and lets the planner know the tables.
func finish(ctx context.Context, tx pgx.Tx, tables []table) error {
	for _, t := range tables {
		force := ""
		if t.Forced {
			force = "FORCE ROW LEVEL SECURITY, "
		}
		if _, err := tx.Exec(ctx, "ALTER TABLE "+t.qualified()+" "+force+"ENABLE TRIGGER USER"); err != nil {
			return fmt.Errorf("protect table %s: %w", t.Name, err)
		}
		if _, err := tx.Exec(ctx, "ANALYZE "+t.qualified()); err != nil {
			return fmt.Errorf("analyse table %s: %w", t.Name, err)
		}
	}
	return nil
}
