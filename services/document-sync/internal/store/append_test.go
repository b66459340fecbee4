package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/services/document-sync/internal/store"
)

// batch is a statement that returns a number.
func batch(sql string, n *int64) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql).QueryRow(func(r pgx.Row) error { return r.Scan(n) })
	return b
}

func TestAppend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	for i := range int64(3) {
		if n := w.append(ref, fmt.Sprint("u", i)); n != i+2 {
			t.Errorf("Append = %d, want %d", n, i+2)
		}
	}
	st := w.load(ref)
	if diff := cmp.Diff([]string{"2:u0", "3:u1", "4:u2"}, data(st.Updates)); diff != "" || st.Document.Sequence != 4 || st.Updates[0].Author != w.author {
		t.Errorf("Load = %+v (-want +got):\n%s", st, diff)
	}
	st, err := w.store.Since(t.Context(), ref, 3)
	if err != nil || st.Snapshot != nil || st.At != 3 || cmp.Diff([]string{"4:u2"}, data(st.Updates)) != "" {
		t.Errorf("Since(3) = %+v, %v", st, err)
	}
	_, err = w.store.Append(t.Context(), ref, w.author, make([]byte, store.MaxUpdate+1))
	wantKind(t, "Append of too much", err, fault.TooLarge)
	if n, err := w.store.Append(t.Context(), ref, w.author, make([]byte, store.MaxUpdate)); err != nil || n != 5 {
		t.Errorf("Append of the maximum size = %d, %v", n, err)
	}
	_, err = w.store.Append(t.Context(), w.ref(), w.author, []byte("x"))
	wantKind(t, "Append to nothing", err, fault.NotFound)
}

// hold blocks all transactions of Append before their commit until release.
func (w *world) hold() (release func()) {
	c := w.admin()
	w.exec(c, `begin`)
	w.exec(c, `lock table updates in exclusive mode`)
	return func() { w.exec(c, `commit`) }
}

// TestGroup checks that updates that arrive during a transaction form the next one, in order of
// arrival, and that none of them fails because of another.
func TestGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	blocker, a, b, gone, bad := w.create(), w.create(), w.create(), w.create(), w.create()
	w.delete(gone)
	admin := w.admin()
	release := w.hold()
	var wg sync.WaitGroup
	wg.Go(func() { w.append(blocker, "x") })
	w.until(admin, blocked)

	type result struct {
		sequence int64
		err      error
	}
	results := map[string]*result{}
	queue := func(name string, ctx context.Context, ref store.Ref, update []byte) {
		r := &result{}
		results[name] = r
		queued := w.store.Queued()
		wg.Go(func() { r.sequence, r.err = w.store.Append(ctx, ref, w.author, update) })
		w.eventually(func() bool { return w.store.Queued() > queued })
	}
	leaves, leave := context.WithCancel(t.Context())
	queue("a1", t.Context(), a, []byte("a1"))
	queue("b1", t.Context(), b, []byte("b1"))
	queue("leaves", leaves, a, []byte("leaves"))
	queue("gone", t.Context(), gone, []byte("gone"))
	queue("a2", t.Context(), a, []byte("a2"))
	leave()
	w.eventually(func() bool { return leaves.Err() != nil })
	release()
	wg.Wait()
	for name, want := range map[string]int64{"a1": 2, "a2": 4, "b1": 2} {
		if r := results[name]; r.err != nil || r.sequence != want {
			t.Errorf("%s = %d, %v, want %d", name, r.sequence, r.err, want)
		}
	}
	wantKind(t, "Append to a deleted document", results["gone"].err, fault.NotFound)
	if err := results["leaves"].err; !errors.Is(err, context.Canceled) {
		t.Errorf("the result after cancellation = %v", err)
	}
	if diff := cmp.Diff([]string{"2:a1", "3:leaves", "4:a2"}, data(w.load(a).Updates)); diff != "" {
		t.Errorf("the document has (-want +got):\n%s", diff)
	}
	if transactions, updates := w.commits(admin), w.number(admin, `SELECT count(*) FROM updates`); transactions != 2 || updates != 5 {
		t.Errorf("there were %d transactions with %d updates, want 2 with 5", transactions, updates)
	}

	// An update that Postgres refuses fails alone.
	w.exec(admin, `ALTER TABLE updates ADD CONSTRAINT unlucky CHECK (data <> 'unlucky')`)
	release = w.hold()
	wg.Go(func() { w.append(blocker, "x") })
	w.until(admin, blocked)
	for i := range 8 {
		queue(fmt.Sprint("c", i), t.Context(), b, fmt.Appendf(nil, "c%d", i))
		if i == 3 {
			queue("bad", t.Context(), bad, []byte("unlucky"))
		}
	}
	release()
	wg.Wait()
	for i := range 8 {
		if r := results[fmt.Sprint("c", i)]; r.err != nil || r.sequence != int64(3+i) {
			t.Errorf("c%d = %d, %v, want %d", i, r.sequence, r.err, 3+i)
		}
	}
	wantKind(t, "what is refused", results["bad"].err, fault.Internal)
	if w.load(bad).Document.Sequence != 1 {
		t.Error("the refused update moved the head")
	}
}

// TestGroupIsBounded checks the limits of a transaction, in number and in bytes.
func TestGroupIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	admin := w.admin()
	for _, tc := range []struct {
		name    string
		n, size int
		want    int64 // transactions
	}{
		{"number", store.GroupUpdates + 5, 1, 3},
		{"size", 5, store.MaxUpdate, 4},
	} {
		before := w.commits(admin)
		release := w.hold()
		var wg sync.WaitGroup
		wg.Go(func() { w.append(ref, "x") })
		w.until(admin, blocked)
		update := make([]byte, tc.size)
		for range tc.n {
			wg.Go(func() {
				if _, err := w.store.Append(t.Context(), ref, w.author, update); err != nil {
					t.Error(err)
				}
			})
		}
		w.eventually(func() bool { return w.store.Queued() == tc.n })
		release()
		wg.Wait()
		if after := w.commits(admin); after-before != tc.want {
			t.Errorf("%s: %d transactions, want %d", tc.name, after-before, tc.want)
		}
	}
}

// TestLockedHead checks that a locked head delays only its own document.
func TestLockedHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	slow, quick, gone := w.create(), w.create(), w.create()
	admin, looker := w.admin(), w.admin()
	w.exec(admin, `begin`)
	w.exec(admin, `SELECT FROM heads WHERE document_id = ANY ($1) FOR UPDATE`, []any{slow.Document.UUID, gone.Document.UUID})
	type result struct {
		sequence int64
		err      error
	}
	waiting := make(chan result, 1)
	deleted := make(chan error, 1)
	go func() {
		n, err := w.store.Append(t.Context(), slow, w.author, []byte("slow"))
		waiting <- result{n, err}
	}()
	w.until(looker, blocked)
	go func() {
		_, err := w.store.Append(t.Context(), gone, w.author, []byte("gone"))
		deleted <- err
	}()
	w.eventually(func() bool { return w.store.Queued() == 1 })
	for range 3 {
		w.append(quick, "quick")
	}
	select {
	case r := <-waiting:
		t.Fatalf("Append to a locked document = %v", r)
	default:
	}
	w.exec(admin, `UPDATE heads SET sequence = 7 WHERE document_id = $1`, slow.Document)
	w.exec(admin, `UPDATE documents SET deleted_at = now(), writes = writes + 1 WHERE id = $1`, gone.Document)
	w.exec(admin, `commit`)
	if r := <-waiting; r.err != nil || r.sequence != 8 {
		t.Errorf("Append after the lock = %d, %v, want 8", r.sequence, r.err)
	}
	wantKind(t, "Append to what was deleted under the lock", <-deleted, fault.NotFound)
}

// TestConcurrentUse has two stores append to the same documents, and save, delete, load and operate
// meanwhile: sequences are dense and unique, and every read is complete.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	pool, other := w.open(store.Limits{Versions: 100, VersionBytes: 1 << 30})
	stores := []*store.Store{w.store, other}
	const docs, writers, each = 7, 12, 40
	var refs []store.Ref
	for range docs {
		refs = append(refs, w.create())
	}
	victim := w.create()

	var mu sync.Mutex
	given := map[store.Ref][]int64{}
	note := func(ref store.Ref, n int64) {
		mu.Lock()
		defer mu.Unlock()
		given[ref] = append(given[ref], n)
	}
	var writing, reading sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			s, rnd := stores[i%2], rand.New(rand.NewPCG(1, uint64(i)))
			for j := range each {
				ref := refs[rnd.IntN(docs)]
				if j%10 == 9 {
					op := w.operation(ref)
					op.Name = store.Edit
					a, err := s.Operate(t.Context(), op, func(d store.Document) (store.Change, error) {
						return store.Change{Update: []byte("op"), State: []byte("s"), Markdown: "m", Since: d.Sequence}, nil
					})
					if err != nil {
						t.Error(err)
						return
					}
					note(ref, a.Document.GetSequence())
					continue
				}
				n, err := s.Append(t.Context(), ref, w.author, fmt.Appendf(nil, "%d.%d", i, j))
				if err != nil {
					t.Error(err)
					return
				}
				note(ref, n)
				if _, err := s.Append(t.Context(), victim, w.author, []byte("v")); err != nil && fault.KindOf(err) != fault.NotFound {
					t.Error(err)
				}
				if i == 0 && j == each/2 {
					w.delete(victim)
				}
			}
		})
	}
	stop := make(chan struct{})
	for i, s := range stores {
		reading.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				// A gap would be an error.
				ref := refs[rnd.IntN(docs)]
				st, err := s.Load(t.Context(), ref)
				if err != nil {
					t.Error(err)
					return
				}
				known := st.At + int64(rnd.IntN(len(st.Updates)+1))
				snap := snapshot(ref, st.Document.Sequence)
				if err := s.Save(t.Context(), snap); err != nil {
					t.Error(err)
					return
				}
				if st, err = s.Since(t.Context(), ref, known); err != nil || st.Snapshot == nil && st.At != known {
					t.Errorf("Since(%d) = %d updates after %d, %v", known, len(st.Updates), st.At, err)
					return
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	heads, err := w.store.Heads(t.Context(), append(refs, victim))
	if err != nil {
		t.Fatal(err)
	}
	if _, there := heads[victim]; there {
		t.Error("the deleted document has a head")
	}
	for _, ref := range refs {
		got := given[ref]
		slices.Sort(got)
		for i, n := range got {
			if n != int64(i+2) {
				t.Fatalf("the sequences are %v, want all from 2 on, once each", got)
			}
		}
		if heads[ref] != int64(len(got)+1) {
			t.Errorf("the head is %d after %d updates", heads[ref], len(got))
		}
	}
	w.noDeadlocks(pool)
}

// TestAppendWhileSaving checks that a slow Save does not block Append.
func TestAppendWhileSaving(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	w.append(ref, "u")
	admin, looker := w.admin(), w.admin()
	w.exec(admin, `begin`)
	w.exec(admin, `SELECT FROM snapshots FOR UPDATE`)
	var saving sync.WaitGroup
	saving.Go(func() { w.save(snapshot(ref, 2)) })
	w.until(looker, blocked)
	if n := w.append(ref, "u"); n != 3 {
		t.Errorf("Append = %d, want 3", n)
	}
	w.exec(admin, `commit`)
	saving.Wait()
	if st := w.load(ref); st.At != 2 || len(st.Updates) != 1 {
		t.Errorf("Load = %+v", st)
	}
}

// TestHeadsAreHOT checks that moving a head touches no index and reuses its space. It has its own
// server, because an open transaction anywhere on a server prevents that.
func TestHeadsAreHOT(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, newServer(t, pgd.Config{Fast: true}), store.Limits{})
	pool, s := w.open(store.Limits{Versions: 10, VersionBytes: 1})
	var refs []store.Ref
	for range 50 {
		refs = append(refs, w.create())
	}
	const rounds = 40
	for range rounds {
		var wg sync.WaitGroup
		for _, ref := range refs {
			wg.Go(func() {
				if _, err := s.Append(t.Context(), ref, w.author, []byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	s.Close()
	pool.Close() // sessions report statistics when they end
	admin := w.admin()
	w.until(admin, `SELECT (n_tup_upd >= $1)::int FROM pg_stat_user_tables WHERE relname = 'heads'`, rounds*len(refs))
	all := w.number(admin, `SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'heads'`)
	hot := w.number(admin, `SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'heads'`)
	pages := w.number(admin, `SELECT pg_relation_size('heads') / 8192`)
	t.Logf("%d of %d updates were HOT; %d pages", hot, all, pages)
	if hot < all*95/100 || pages > 4 {
		t.Errorf("%d of %d updates were HOT, on %d pages; want nearly all, on few pages", hot, all, pages)
	}
}
