package connect_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/e2e/world"
)

// noSecrets searches for issued secrets in all responses, logs and tables, and in the data of the
// bus, and for states, codes and cookies everywhere except in responses.
func (r *rig) noSecrets() {
	r.t.Helper()
	issued, passed := r.far.secrets()
	r.answers.mu.Lock()
	answers, cookies := r.answers.text.Bytes(), r.answers.cookies
	r.answers.mu.Unlock()
	if len(issued) < 4 || len(passed) < 4 || len(cookies) < 2 {
		r.t.Errorf("only %d secrets were issued, %d states and codes and %d cookies", len(issued), len(passed), len(cookies))
	}
	r.search("an answer", answers, issued)
	all := slices.Concat(issued, passed, cookies)
	for _, p := range r.Procs() {
		r.file("the log of "+p.Name(), p.LogFile(), all)
	}
	r.tables(all)
	files := 0
	err := filepath.WalkDir(r.bus, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files++
			r.file("the bus", name, all)
		}
		return nil // files come and go
	})
	if err != nil || files == 0 {
		r.t.Errorf("the bus has %d files: %v", files, err)
	}
}

func (r *rig) file(place, name string, secrets []string) {
	r.t.Helper()
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	r.search(place, text, secrets)
}

func (r *rig) search(place string, text []byte, secrets []string) {
	r.t.Helper()
	for _, s := range secrets {
		if s != "" && (bytes.Contains(text, []byte(s)) || bytes.Contains(text, []byte(hex.EncodeToString([]byte(s))))) {
			r.t.Errorf("%s contains a secret that begins with %.8s", place, s)
		}
	}
}

// tables reads every table of all schemas.
func (r *rig) tables(secrets []string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), world.Timeout) // the test's context has ended
	defer cancel()
	db, err := pgx.Connect(ctx, r.Database)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	query := func(sql string) []string {
		r.t.Helper()
		rows, err := db.Query(ctx, sql)
		if err != nil {
			r.t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			r.t.Fatal(err)
		}
		return all
	}
	found := map[string]int{}
	for _, table := range query(`SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`) {
		for _, row := range query(`SELECT t::text FROM ` + table + ` AS t`) {
			found[table]++
			r.search("table "+table, []byte(row), secrets)
		}
	}
	for _, table := range []string{"credentials.grants", "credentials.logins", "credentials.audit", "gateway.sign_ins"} {
		if found[table] == 0 {
			r.t.Errorf("table %s has no rows", table)
		}
	}
}
