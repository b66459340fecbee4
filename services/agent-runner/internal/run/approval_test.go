package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/agent-runner/internal/run"
)

// An approval is for the arguments that the person saw, and for nothing else.
func TestMayRun(t *testing.T) {
	t.Parallel()
	args := json.RawMessage(`{"to":"a","n":1}`)
	seen := run.HashArgs(json.RawMessage(`{"to": "a", "n": 1}`))
	for _, tt := range []struct {
		name string
		ask  *run.Ask
		want bool
	}{
		{"nobody is asked", nil, true},
		{"undecided", &run.Ask{Question: run.AskApproval, ArgsHash: seen}, false},
		{"approved", &run.Ask{Decision: run.Approved, ArgsHash: seen}, true},
		{"by a rule", &run.Ask{Decision: run.ByRule, ArgsHash: seen}, true},
		{"again", &run.Ask{Decision: run.Repeat, ArgsHash: seen}, true},
		{"refused", &run.Ask{Decision: run.Refused, ArgsHash: seen}, false},
		{"expired", &run.Ask{Decision: run.Expired, ArgsHash: seen}, false},
		{"happened", &run.Ask{Decision: run.Happened, ArgsHash: seen}, false},
		{"other arguments", &run.Ask{Decision: run.Approved, ArgsHash: run.HashArgs(json.RawMessage(`{"to":"b","n":1}`))}, false},
		{"no arguments", &run.Ask{Decision: run.Approved}, false},
	} {
		c := run.Call{Args: args, Ask: tt.ask}
		if got := c.MayRun(); got != tt.want {
			t.Errorf("%s: MayRun = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// parks parks a claimed run as if a call of it waited for a person.
func (w *turnWorld) parks(c *run.Claim) error {
	_, err := w.s.Wait(w.t.Context(), c, run.Wait{}, 2)
	return err
}

// inTx runs do in a transaction of a run's workspace.
func (w *turnWorld) inTx(r *run.Run, do func(ctx context.Context, tx pgx.Tx) error) {
	w.t.Helper()
	if err := w.db.InWorkspace(w.t.Context(), r.Workspace, do); err != nil {
		w.t.Fatal(err)
	}
}

func (w *turnWorld) resume(r *run.Run) {
	w.t.Helper()
	w.inTx(r, func(ctx context.Context, tx pgx.Tx) error {
		return run.Resume(ctx, tx, r.Workspace, r.Session, r.ID, "answered")
	})
}

// A run that waits for a person holds no slot of its workspace, and an answer resumes it only once
// there is one. The run that ends wakes it. The wait for the slot is not part of its time.
func TestResumedRunNeedsSlot(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 1)
	w.wait("aa")
	w.next()
	parked := w.taken['a'][0]
	if err := w.parks(parked); err != nil {
		t.Fatal(err)
	}
	if got := w.next(); got != "a" {
		t.Fatalf("a run of %q was taken after the first one parked, want the second", got)
	}
	other := w.taken['a'][1]
	w.resume(&parked.Run)
	if got := w.next(); got != "-" {
		t.Errorf("a run of %q was taken beyond the limit", got)
	}
	claim := func() (*run.Claim, error) {
		return w.s.Claim(t.Context(), parked.Run.Workspace, parked.Run.Session, parked.Run.ID)
	}
	if _, err := claim(); !errors.Is(err, run.ErrNotClaimable) {
		t.Errorf("Claim() of a resumed run of a full workspace = %v, want ErrNotClaimable", err)
	}
	for name, find := range map[string]func() ([]run.Claimable, error){
		"Sweep": func() ([]run.Claimable, error) { return w.s.Sweep(t.Context(), 0, 10) },
		"Ready": func() ([]run.Claimable, error) { return w.s.Ready(t.Context(), 10) },
	} {
		if found, err := find(); err != nil || len(found) != 1 || found[0].Run != parked.Run.ID || !found[0].Queued {
			t.Errorf("%s() = %v, %v, want the resumed run, queued", name, found, err)
		}
	}
	if found, err := w.s.Sweep(t.Context(), time.Hour, 10); err != nil || len(found) > 0 {
		t.Errorf("Sweep() with patience = %v, %v, want nothing", found, err)
	}
	w.inTx(&other.Run, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE runs SET state = CASE id WHEN $1 THEN 'done' ELSE 'running' END,
			lease_until = CASE WHEN id <> $1 THEN clock_timestamp() - interval '10 min' END`, other.Run.ID)
		if err != nil {
			return err
		}
		if err := run.WakeOther(ctx, tx, other.Run.Workspace, other.Run.ID); err != nil {
			return err
		}
		var woken bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox WHERE message_id = $1)`,
			parked.Run.ID.String()+":after-"+other.Run.ID.String()).Scan(&woken); err == nil && !woken {
			t.Error("the end of the other run does not wake the resumed one")
		}
		return err
	})
	c, err := claim()
	if err != nil {
		t.Fatalf("Claim() of a resumed run with a free slot = %v", err)
	}
	if waited := c.Run.Deadline.Sub(*parked.Run.Deadline); waited < 10*time.Minute {
		t.Errorf("the deadline moved by %s, want the ten minutes that the run waited for its slot", waited)
	}
}

// A stopped run needs no slot to end.
func TestStoppedRunNeedsNoSlot(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 1)
	w.wait("aa")
	w.next()
	parked := &w.taken['a'][0].Run
	if err := w.parks(w.taken['a'][0]); err != nil {
		t.Fatal(err)
	}
	w.next()
	w.inTx(parked, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO run_inbox (workspace_id, run_id, kind, created_by) VALUES ($1, $2, 'stop', $3)`,
			parked.Workspace, parked.ID, parked.CreatedBy)
		return err
	})
	w.resume(parked)
	if w.next(); len(w.taken['a']) != 3 || w.taken['a'][2].Run.ID != parked.ID {
		t.Error("a stopped run waits for a slot")
	}
}

// If the reply to Wait is lost, and an answer comes before it is repeated, the runner has lost the run.
func TestWaitRepeatedAfterAnswer(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 1)
	w.wait("a")
	w.next()
	c := w.taken['a'][0]
	if err := w.parks(c); err != nil {
		t.Fatal(err)
	}
	w.resume(&c.Run)
	if err := w.parks(c); !errors.Is(err, run.ErrFenced) {
		t.Errorf("Wait() again after an answer = %v, want ErrFenced", err)
	}
	if kept, err := w.s.Renew(t.Context(), []run.Lease{c.Lease()}); err != nil || len(kept) > 0 {
		t.Errorf("Renew() after an answer = %v, %v, want the lease lost", kept, err)
	}
}
