package store_test

import (
	"context"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/migrations"
)

// old is the previous release: it has its SQL statements.
type old struct {
	t      testing.TB
	db     *pg.DB
	author store.Author
}

func (o old) create(ref store.Ref, content string) {
	o.t.Helper()
	o.in(ref, func(ctx context.Context, tx pgx.Tx) error {
		args := o.args(ref, "old name", content, 1)
		args["created_by"], args["created_at"], args["operation"] = o.author.Member, time.Now(), "create"
		_, err := tx.Exec(ctx, `INSERT INTO documents (workspace_id, id, name, content, sequence, created_by, created_at, updated_by, updated_run, updated_at, versions, version_bytes)
		VALUES (@ws, @id, @name, @content, @sequence, @created_by, @created_at, @by, @run, @at, 1, @bytes)`, args)
		if err != nil {
			return err
		}
		return o.version(ctx, tx, args)
	})
}

// read returns what the old release reads.
func (o old) read(ref store.Ref) (content string, sequence int64) {
	o.t.Helper()
	o.in(ref, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT content, sequence FROM documents WHERE workspace_id = $1 AND id = $2 AND deleted_at IS NULL`,
			ref.Workspace, ref.Document).Scan(&content, &sequence)
	})
	return content, sequence
}

// change is an operation of the old release. It returns the sequence of the response.
func (o old) change(ref store.Ref, operation string, next func(name, content string) (string, string)) (sequence int64) {
	o.t.Helper()
	o.in(ref, func(ctx context.Context, tx pgx.Tx) error {
		var name, content string
		var n int
		var size int64
		err := tx.QueryRow(ctx, `SELECT name, sequence, content, versions, version_bytes FROM documents
			WHERE workspace_id = $1 AND id = $2 AND deleted_at IS NULL FOR UPDATE`, ref.Workspace, ref.Document).Scan(&name, &sequence, &content, &n, &size)
		if err != nil {
			return err
		}
		sequence++
		if operation == store.Delete {
			args := o.args(ref, "", "", sequence)
			if _, err := tx.Exec(ctx, `UPDATE documents SET content = '', sequence = @sequence, updated_by = @by, updated_run = @run, updated_at = @at,
		deleted_at = @at, versions = 0, version_bytes = 0 WHERE workspace_id = @ws AND id = @id`, args); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `DELETE FROM versions WHERE workspace_id = @ws AND document_id = @id`, args)
			return err
		}
		name, content = next(name, content)
		args := o.args(ref, name, content, sequence)
		args["operation"] = operation
		if _, err := tx.Exec(ctx, `UPDATE documents SET name = @name, content = @content, sequence = @sequence, updated_by = @by, updated_run = @run, updated_at = @at,
		versions = versions + 1, version_bytes = version_bytes + @bytes
		WHERE workspace_id = @ws AND id = @id`, args); err != nil {
			return err
		}
		return o.version(ctx, tx, args)
	})
	return sequence
}

func (o old) edit(ref store.Ref, content string) int64 {
	o.t.Helper()
	return o.change(ref, store.Replace, func(name, _ string) (string, string) { return name, content })
}

func (o old) version(ctx context.Context, tx pgx.Tx, args pg.Args) error {
	_, err := tx.Exec(ctx, `INSERT INTO versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, bytes, created_at)
		VALUES (@ws, @id, @sequence, @by, @run, @operation, @name, @content, @bytes, @at)`, args)
	return err
}

func (o old) args(ref store.Ref, name, content string, sequence int64) pg.Args {
	return pg.Args{
		"ws": ref.Workspace, "id": ref.Document, "name": name, "content": content, "sequence": sequence,
		"by": o.author.Member, "run": uuid.NullUUID{}, "at": time.Now(), "bytes": len(content),
	}
}

func (o old) in(ref store.Ref, fn func(context.Context, pgx.Tx) error) {
	o.t.Helper()
	if err := o.db.InWorkspace(o.t.Context(), ref.Workspace, fn); err != nil {
		o.t.Fatal(err)
	}
}

func (w *world) old() old { return old{w.t, w.pool, person()} }

// plant applies the document's seed, which must be want.
func (w *world) plant(ref store.Ref, want store.Seed, wantSequence int64) {
	w.t.Helper()
	st := w.load(ref)
	if st.Seed == nil || *st.Seed != want {
		w.t.Fatalf("Load has the seed %v, want %v", st.Seed, want)
	}
	sequence, applied, err := w.store.ApplySeed(w.t.Context(), ref, *st.Seed, []byte("applied"))
	if err != nil || !applied || sequence != wantSequence {
		w.t.Fatalf("ApplySeed = %d, %t, %v, want %d", sequence, applied, err, wantSequence)
	}
	if st = w.load(ref); st.Seed != nil || st.Document.Sequence != wantSequence || string(st.Updates[len(st.Updates)-1].Data) != "applied" {
		w.t.Fatalf("after ApplySeed, Load = %+v", st)
	}
}

// TestOldReleaseCreates has the old release create a document.
func TestOldReleaseCreates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.ref()
	w.old().create(ref, "# old")
	st := w.load(ref)
	if st.At != 1 || st.Snapshot != nil || len(st.Updates) != 0 || st.Document.Sequence != 1 {
		t.Errorf("Load = %+v", st)
	}
	if _, _, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || current {
		t.Errorf("a seed counts as current Markdown: %v", err)
	}
	w.plant(ref, store.Seed{Before: "", After: "# old"}, 2)
	st = w.load(ref)
	if st.At != 1 || cmp.Diff([]string{"2:applied"}, data(st.Updates)) != "" || st.Document.Name != "old name" {
		t.Errorf("Load = %+v", st)
	}
	w.save(snapshot(ref, 2))
	if _, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || markdown != "# markdown 2" || !current {
		t.Errorf("Markdown = %q, %t, %v", markdown, current, err)
	}
	if content, sequence := w.old().read(ref); content != "# markdown 2" || sequence != 2 {
		t.Errorf("the old release reads %q at %d", content, sequence)
	}
}

// TestOldReleaseEdits has the old release edit a document that is open in the new one.
func TestOldReleaseEdits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	o := w.old()
	for range 3 { // 2 to 4
		w.append(ref, "u")
	}
	if answered := o.edit(ref, "# first, edited"); answered != 2 {
		t.Errorf("the old release answers %d", answered)
	}
	st, err := w.store.Since(t.Context(), ref, 4)
	want := store.Seed{Before: "# first", After: "# first, edited"}
	if err != nil || cmp.Diff([]string{"5:\x00\x00"}, data(st.Updates)) != "" || st.Seed == nil || *st.Seed != want || st.Updates[0].Author != o.author {
		t.Fatalf("Since(4) = %+v, %v", st, err)
	}
	if _, sequence := o.read(ref); sequence != 5 {
		t.Errorf("the old release sees the sequence %d, want the head's", sequence)
	}
	// The seed stays until it is applied, whatever else happens.
	w.append(ref, "u") // 6
	w.save(snapshot(ref, 6))
	op := w.operation(ref)
	op.Name = store.Edit
	if _, err := w.store.Operate(t.Context(), op, func(d store.Document) (store.Change, error) {
		return store.Change{Update: []byte("u"), State: []byte("s"), Markdown: "# operated", Since: d.Sequence}, nil
	}); err != nil { // 7
		t.Fatal(err)
	}
	if content, _ := o.read(ref); content != "# first, edited" {
		t.Errorf("the old release reads %q", content)
	}
	if _, _, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || current {
		t.Errorf("a seed counts as current Markdown: %v", err)
	}
	o.edit(ref, "# first, edited twice") // 8
	if _, applied, err := w.store.ApplySeed(t.Context(), ref, want, []byte("x")); err != nil || applied {
		t.Errorf("ApplySeed of a replaced seed = %t, %v", applied, err)
	}
	w.plant(ref, store.Seed{Before: "# first", After: "# first, edited twice"}, 9)
	o.change(ref, store.Rename, func(_, content string) (string, string) { return "renamed", content }) // 10
	if st := w.load(ref); st.Seed != nil || st.Document.Sequence != 10 || st.Document.Name != "renamed" {
		t.Errorf("Load after its Rename = %+v", st)
	}
	w.save(snapshot(ref, 10))
	o.change(ref, store.Rename, func(_, content string) (string, string) { return "again", content }) // 11
	if _, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || markdown != "# markdown 10" || !current {
		t.Errorf("Markdown after its Rename = %q, %t, %v, want it unchanged", markdown, current, err)
	}
	// Its versions are in the history; its text has another one with the resulting state.
	if diff := cmp.Diff([]string{"11:rename", "10:rename", "9:write", "8:replace", "7:edit", "6:write", "2:replace", "1:create"}, w.history(ref)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if v, err := w.store.Version(t.Context(), ref, 2); err != nil || v.Markdown != "# first, edited" || v.State != nil {
		t.Errorf("Version(2) = %+v, %v", v, err)
	}
}

// TestOldReleaseTakesVersionNumber has a version of the old release with the number of a pending snapshot.
func TestOldReleaseTakesVersionNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	w.append(ref, "u") // 2
	w.old().edit(ref, "old")
	snap := snapshot(ref, 2)
	w.save(snap)
	if st := w.load(ref); st.At != 2 || st.Document.Sequence != 3 || st.Seed == nil {
		t.Errorf("Load = %+v", st)
	}
	if v, err := w.store.Version(t.Context(), ref, 2); err != nil || v.Operation != store.Replace {
		t.Errorf("Version(2) = %+v, %v, want the old release's", v, err)
	}
	if n := w.number(w.admin(), `SELECT versions FROM documents WHERE id = $1`, ref.Document); n != 2 {
		t.Errorf("the document counts %d versions, want 2", n)
	}
}

// TestOldReleaseDeletes has the old release delete a document that is open in the new one, and vice
// versa.
func TestOldReleaseDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	for range 3 {
		w.append(ref, "u")
	}
	w.old().change(ref, store.Delete, nil)
	_, err := w.store.Append(t.Context(), ref, w.author, []byte("u"))
	wantKind(t, "Append", err, fault.NotFound)
	wantKind(t, "Save", w.store.Save(t.Context(), snapshot(ref, 4)), fault.NotFound)
	if heads, err := w.store.Heads(t.Context(), []store.Ref{ref}); err != nil || len(heads) != 0 {
		t.Errorf("Heads = %v, %v, want none", heads, err)
	}
	changed, err := w.store.Changed(t.Context(), w.ws, time.Hour, nil, 10)
	if err != nil || len(changed) != 1 || !changed[0].Deleted || changed[0].Sequence != 5 {
		t.Errorf("Changed = %+v, %v, want a tombstone with the sequence 5", changed, err)
	}
	for _, table := range []string{"heads", "snapshots", "updates", "versions"} {
		if n := w.number(w.admin(), `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}
	mine := w.ref()
	w.old().create(mine, "old")
	if a := w.delete(mine); a.Document.GetSequence() != 2 {
		t.Errorf("Delete = %v", a)
	}
	if n, err := w.store.Housekeep(t.Context(), 0); err != nil || n != 2 {
		t.Errorf("Housekeep = %d, %v, want 2 tombstones", n, err)
	}
}

// TestApplySeedOnce has several instances apply the same seed: one does.
func TestApplySeedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	_, other := w.open(store.Limits{Versions: 100, VersionBytes: 1 << 20})
	ref := w.ref()
	w.old().create(ref, "# old")
	seed := *w.load(ref).Seed
	var wg sync.WaitGroup
	did := make(chan int64, 8)
	for i := range 8 {
		s := []*store.Store{w.store, other}[i%2]
		wg.Go(func() {
			n, applied, err := s.ApplySeed(t.Context(), ref, seed, []byte("applied"))
			if err != nil {
				t.Error(err)
			}
			if applied {
				did <- n
			}
		})
	}
	wg.Wait()
	if len(did) != 1 || <-did != 2 {
		t.Errorf("%d applied it, want one, at 2", len(did)+1)
	}
	if st := w.load(ref); st.Seed != nil || cmp.Diff([]string{"2:applied"}, data(st.Updates)) != "" {
		t.Errorf("Load = %+v", st)
	}
}

// TestOldAndNewReleaseAtOnce has both releases write to the same documents at once: nothing fails, and
// sequences stay dense.
func TestOldAndNewReleaseAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	refs := []store.Ref{w.create(), w.create(), w.create()}
	var wg sync.WaitGroup
	for i := range 4 {
		o := w.old()
		wg.Go(func() {
			for j := range 20 {
				o.edit(refs[(i+j)%3], uuid.NewString())
			}
		})
		wg.Go(func() {
			for j := range 20 {
				ref := refs[(i+j)%3]
				n := w.append(ref, "u")
				snap := snapshot(ref, n)
				w.save(snap)
				if st := w.load(ref); st.Seed != nil {
					if _, _, err := w.store.ApplySeed(t.Context(), ref, *st.Seed, nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, ref := range refs {
		w.load(ref) // fails if there is a gap
	}
	w.noDeadlocks()
}

// migrateTo returns a goose provider for these files.
func migrateTo(t *testing.T, w *world, files fs.FS) *goose.Provider {
	t.Helper()
	cfg, err := pgx.ParseConfig(w.db.AdminURL + "&search_path=documents")
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("documents.goose_db_version"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMigration checks that rows survive the migration, and its reversal; sequences only grow.
func TestMigration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	p := migrateTo(t, w, migrations.FS)
	if _, err := p.DownTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	o := w.old()
	ref, gone := w.ref(), w.ref()
	o.create(ref, "# one")
	o.edit(ref, "# two")
	o.create(gone, "gone")
	o.change(gone, store.Delete, nil)
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := w.load(ref); st.At != 2 || st.Document.Sequence != 2 {
		t.Errorf("Load = %+v", st)
	}
	w.plant(ref, store.Seed{Before: "", After: "# two"}, 3)
	if heads, err := w.store.Heads(t.Context(), []store.Ref{ref, gone}); err != nil || len(heads) != 1 {
		t.Errorf("Heads = %v, %v", heads, err)
	}
	w.save(snapshot(ref, 3))
	w.append(ref, "u")
	if _, err := p.DownTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if content, sequence := o.read(ref); content != "# markdown 3" || sequence != 4 {
		t.Errorf("the old release reads %q at %d", content, sequence)
	}
	o.edit(ref, "# five")
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := w.load(ref); st.Document.Sequence != 5 || st.Seed == nil || *st.Seed != (store.Seed{After: "# five"}) {
		t.Errorf("Load = %+v", st)
	}
	if _, err := p.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if n := w.number(w.admin(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'documents'`); n != 1 {
		t.Errorf("%d tables are left, want goose's alone", n)
	}
}
