package store_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/document-sync/internal/store"
)

// TestConnectionLostDuringCommit ends the connection during a commit: the callers get an error, nothing is done
// in part, and a repetition is harmless.
func TestConnectionLostDuringCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	a, b := w.create(), w.create()
	admin, gate := w.admin(), w.admin()
	w.exec(admin, `CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$`)
	w.exec(admin, `CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER INSERT ON updates DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`)
	op := w.operation(a)
	op.Name, op.Key = store.Edit, id.New[id.Operation]()
	operate := func() (store.Answer, error) {
		return w.store.Operate(t.Context(), op, func(d store.Document) (store.Change, error) {
			return store.Change{Update: []byte("op"), State: []byte("s"), Markdown: "m", Since: d.Sequence}, nil
		})
	}
	kill := func() {
		w.until(admin, blocked)
		w.exec(admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()`)
	}

	w.exec(gate, `SELECT pg_advisory_lock(4711)`)
	var wg sync.WaitGroup
	for _, ref := range []store.Ref{a, b} {
		// One after the other, so that each is in a commit of its own.
		wg.Go(func() {
			_, err := w.store.Append(t.Context(), ref, w.author, []byte("u"))
			wantKind(t, "Append of which nobody knows", err, fault.Unavailable)
		})
		kill()
		wg.Wait()
	}
	wg.Go(func() {
		_, err := operate()
		wantKind(t, "Operate of which nobody knows", err, fault.Unavailable)
	})
	kill()
	wg.Wait()
	w.exec(gate, `SELECT pg_advisory_unlock(4711)`)

	for _, ref := range []store.Ref{a, b} {
		if n := w.append(ref, "again"); n != 2 {
			t.Errorf("the repetition got %d, want 2", n)
		}
	}
	answer, err := operate()
	if err != nil || !answer.Changed || answer.Document.GetSequence() != 3 {
		t.Errorf("the repeated operation = %v, %v", answer, err)
	}

	// The same with an undo: the undone version is not marked in part.
	op.Name, op.Undoes, op.Key = store.Undo, 3, id.New[id.Operation]()
	w.exec(gate, `SELECT pg_advisory_lock(4711)`)
	wg.Go(func() {
		_, err := operate()
		wantKind(t, "Undo of which nobody knows", err, fault.Unavailable)
	})
	kill()
	wg.Wait()
	w.exec(gate, `SELECT pg_advisory_unlock(4711)`)
	if answer, err := operate(); err != nil || !answer.Changed || answer.Document.GetSequence() != 4 {
		t.Errorf("the repeated undo = %v, %v", answer, err)
	}
	if answer, err := operate(); err != nil || !answer.Repeated || answer.Document.GetSequence() != 4 {
		t.Errorf("the undo repeated after its answer was lost = %v, %v", answer, err)
	}
	if diff := cmp.Diff([]string{"2:again", "3:op", "4:op"}, data(w.load(a).Updates)); diff != "" {
		t.Errorf("the document has (-want +got):\n%s", diff)
	}
}

// TestDeadlock retries a transaction that was ended by a deadlock.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	admin := w.admin()
	w.exec(admin, `CREATE SEQUENCE failures MINVALUE -100 START 1`)
	w.exec(admin, `GRANT USAGE ON SEQUENCE failures TO signalbox_documents`)
	w.exec(admin, `CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('failures') <= 2 THEN
				RAISE EXCEPTION 'simulated deadlock' USING ERRCODE = '40P01';
			END IF;
			RETURN NULL;
		END $$`)
	w.exec(admin, `CREATE TRIGGER deadlock AFTER INSERT ON updates FOR EACH ROW EXECUTE FUNCTION deadlock()`)
	if n := w.append(ref, "u"); n != 2 {
		t.Errorf("Append = %d, want 2", n)
	}
	w.exec(admin, `ALTER SEQUENCE failures RESTART WITH -100`)
	_, err := w.store.Append(t.Context(), ref, w.author, []byte("u"))
	wantKind(t, "Append with endless deadlocks", err, fault.Unavailable)
}

// TestPostgresOutage checks that Append fails while Postgres is down, and works afterwards.
func TestPostgresOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	w.pool.Close()
	_, err := w.store.Append(t.Context(), ref, w.author, []byte("u"))
	wantKind(t, "Append", err, fault.Unavailable)
	_, err = w.store.Load(t.Context(), ref)
	wantKind(t, "Load", err, fault.Unavailable)

	_, again := w.open(store.Limits{Versions: 10, VersionBytes: 1 << 20})
	if n, err := again.Append(t.Context(), ref, w.author, []byte("u")); err != nil || n != 2 {
		t.Errorf("Append = %d, %v, want 2", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = again.Append(ctx, ref, w.author, []byte("u"))
	wantKind(t, "Append of one who has left", err, fault.Cancelled)
}
