// Package backup copies the rows of all schemas of a database into one file, while services
// run, and back into an empty database.
//
// A backup is a zip archive with a file for each table, in the text format of PostgreSQL's
// COPY, and manifest.json, which has the number of the last migration of each schema and the
// SHA-256 of each file. The archive's comment is the SHA-256 of the manifest. It has neither
// roles nor owners nor definitions of tables: Restore makes the tables with the migrations of
// the program, so that the database, its owner and the server's version may differ. Nor does
// it have the keys that seal credentials, or anything of NATS, whose streams the services make
// again from the rows.
//
// Write reads everything in one transaction with one snapshot, during which pg.Migrate waits.
// It needs no superuser: the claim signalbox.system shows all rows.
//
// Restore works in this order. If the process dies here, what remains is:
//
//	verify the whole file     nothing
//	migrate the schemas up    tables without rows: Restore can be repeated
//	  to the backup's
//	copy all rows, in one     the same
//	  transaction
//	migrate up to this        the data, as of the backup's version: pg.Migrate continues
//	  program
//
// While it copies, it holds the tables exclusively, with their row-level security not forced
// and their triggers off: rows arrive as they were. Foreign keys are checked.
package backup

import (
	"archive/zip"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
)

// format is the version of the archive's layout.
const format = 1

const manifestName = "manifest.json"

// Manifest describes a backup.
type Manifest struct {
	Format    int       `json:"format"`
	Program   string    `json:"program"` // the version that wrote it
	CreatedAt time.Time `json:"created_at"`
	// Keys names the keys that seal its stored credentials.
	Keys []string `json:"keys"`
	// Owner is whose tokens a data folder makes; nil without one.
	Owner   *Owner   `json:"owner,omitempty"`
	Schemas []Schema `json:"schemas"`
}

// Owner is the member of a data folder's development tokens.
type Owner struct {
	Workspace id.Workspace `json:"workspace_id"`
	Member    id.Member    `json:"member_id"`
}

// Schema is the state of one service.
type Schema struct {
	Name      string     `json:"name"`
	Migration int64      `json:"migration"` // the last applied one
	Tables    []Table    `json:"tables"`
	Sequences []Sequence `json:"sequences"`
}

// Table is a file of the archive.
type Table struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
	Rows    int64    `json:"rows"`
	Bytes   int64    `json:"bytes"`
	SHA256  string   `json:"sha256"`
}

// Sequence is the position of a sequence.
type Sequence struct {
	Name   string `json:"name"`
	Last   int64  `json:"last"`
	Called bool   `json:"called"` // whether Last has been used
}

// Rows returns the number of rows of all tables.
func (m *Manifest) Rows() (n int64) {
	for _, s := range m.Schemas {
		for _, t := range s.Tables {
			n += t.Rows
		}
	}
	return n
}

// Options are for Write and Restore.
type Options struct {
	// AdminURL is the database as its administrator, who need not be a superuser.
	AdminURL   string
	Migrations []pg.Migrations
	// Progress is called before each table, if it is set.
	Progress func(table string)
}

func (o *Options) progress(table string) {
	if o.Progress != nil {
		o.Progress(table)
	}
}

// Write writes a backup of a database to w. Owner is stored in it. Keys returns the names of the
// keys that seal credentials.
func Write(ctx context.Context, w io.Writer, o Options, owner *Owner, keys func(context.Context, pgx.Tx) ([]string, error)) (m Manifest, err error) {
	conn, err := pg.OpenAdmin(ctx, o.AdminURL)
	if err != nil {
		return m, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it was only read
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return m, fmt.Errorf("begin: %w", err)
	}
	m = Manifest{Format: format, Program: process.Version(), CreatedAt: time.Now().UTC().Truncate(time.Second), Owner: owner}
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	for _, service := range o.Migrations {
		s, err := writeSchema(ctx, tx, z, service, o.progress)
		if err != nil {
			return m, fmt.Errorf("back up schema %s: %w", service.Schema, err)
		}
		m.Schemas = append(m.Schemas, s)
	}
	if m.Keys, err = keys(ctx, tx); err != nil {
		return m, err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, fmt.Errorf("write the manifest: %w", err)
	}
	f, err := z.Create(manifestName)
	if err == nil {
		_, err = f.Write(text)
	}
	err = errors.Join(err, z.SetComment(digest(text)), z.Close())
	if err != nil {
		return m, fmt.Errorf("write the manifest: %w", err)
	}
	return m, nil
}

func writeSchema(ctx context.Context, tx pgx.Tx, z *zip.Writer, service pg.Migrations, progress func(string)) (Schema, error) {
	s := Schema{Name: service.Schema}
	var err error
	if s.Migration, err = version(ctx, tx, s.Name); err != nil {
		return s, err
	}
	tables, err := tablesOf(ctx, tx, service)
	if err != nil {
		return s, err
	}
	for _, t := range tables {
		if t.derivedBy != "" {
			continue
		}
		if t.Hidden {
			return s, fmt.Errorf("row-level security hides rows of table %s from this user: use a superuser", t.Name)
		}
		progress(t.qualified())
		saved := Table{Name: t.Name, Columns: t.Columns}
		f, err := z.Create(saved.file(s.Name))
		if err != nil {
			return s, fmt.Errorf("write table %s: %w", t.Name, err)
		}
		c := counter{hash: sha256.New()}
		tag, err := tx.Conn().PgConn().CopyTo(ctx, io.MultiWriter(f, &c), "COPY "+t.qualified()+" ("+t.columns()+") TO STDOUT")
		if err != nil {
			return s, fmt.Errorf("copy table %s: %w", t.Name, err)
		}
		saved.Rows, saved.Bytes, saved.SHA256 = tag.RowsAffected(), c.n, hex.EncodeToString(c.hash.Sum(nil))
		s.Tables = append(s.Tables, saved)
	}
	s.Sequences, err = sequencesOf(ctx, tx, s.Name)
	return s, err
}

// file returns the name of the table's file.
func (t *Table) file(schema string) string { return schema + "/" + t.Name + ".copy" }

// counter hashes and counts what is written to it.
type counter struct {
	hash hash.Hash
	n    int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.hash.Write(b)
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
