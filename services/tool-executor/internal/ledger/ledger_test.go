package ledger_test

import (
	"errors"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/migrations"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "tools", Role: "signalbox_tools", FS: migrations.FS}
}

func newCall() ledger.Call {
	return ledger.Call{
		Ref: ledger.Ref{Workspace: id.New[id.Workspace](), Key: id.New[id.Operation]()},
		Run: id.New[id.Run](), Session: id.New[id.Session](), ToolCallID: "toolu_1", ToolName: "act", Effect: toolv1.Effect_EFFECT_PURE,
	}
}

func mustClaim(t *testing.T, l *ledger.Ledger, c ledger.Call) ledger.Claim {
	t.Helper()
	claim, err := l.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func done(c ledger.Call) *toolv1.Outcome {
	return &toolv1.Outcome{Key: c.Key.String(), State: toolv1.OutcomeState_OUTCOME_STATE_OK, ResultJson: `{}`}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, schema()).Open(t, schema())
	one, two := ledger.New(db, time.Minute), ledger.New(db, time.Minute)
	c := newCall()
	if got := mustClaim(t, one, c); got.Attempt != 1 {
		t.Errorf("first claim = %+v, want attempt 1", got)
	}
	if got := mustClaim(t, two, c); got.Attempt != 0 || got.Busy < 50*time.Second || got.Busy > time.Minute {
		t.Errorf("claim of another's = %+v, want it busy for a minute", got)
	}
	if got := mustClaim(t, one, c); got.Attempt != 2 {
		t.Errorf("claim of the own = %+v, want attempt 2", got)
	}
	if err := one.Record(t.Context(), c.Workspace, 1, done(c)); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Record of an old attempt = %v, want ErrLost", err)
	}
	if err := two.Record(t.Context(), c.Workspace, 2, done(c)); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Record of another's attempt = %v, want ErrLost", err)
	}
	if held, err := one.Renew(t.Context(), []ledger.Ref{c.Ref, newCall().Ref}); err != nil || len(held) != 1 || held[c.Ref] != 2 {
		t.Errorf("Renew = %v, %v, want attempt 2 of one call", held, err)
	}
	if held, err := two.Renew(t.Context(), []ledger.Ref{c.Ref}); err != nil || len(held) != 0 {
		t.Errorf("Renew of another's = %v, %v, want none", held, err)
	}
	if err := one.Release(t.Context(), c.Ref, 2); err != nil {
		t.Errorf("Release = %v", err)
	}
	if got := mustClaim(t, two, c); got.Attempt != 3 {
		t.Errorf("claim after a release = %+v, want attempt 3", got)
	}
	if err := two.Record(t.Context(), c.Workspace, 3, done(c)); err != nil {
		t.Errorf("Record = %v", err)
	}
	if err := two.Record(t.Context(), c.Workspace, 3, done(c)); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("a second Record = %v, want ErrLost", err)
	}
	if got := mustClaim(t, one, c); got.Done.GetResultJson() != `{}` || got.Done.GetToolCallId() != "toolu_1" {
		t.Errorf("claim of what is done = %+v, want its outcome", got)
	}
}

func TestHousekeep(t *testing.T) {
	t.Parallel()
	l := ledger.New(pgtest.New(t, schema()).Open(t, schema()), time.Minute)
	ended, running := newCall(), newCall()
	mustClaim(t, l, ended)
	mustClaim(t, l, running)
	if err := l.Record(t.Context(), ended.Workspace, 1, done(ended)); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Housekeep(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("Housekeep of what is young = %d, %v, want 0", n, err)
	}
	if n, err := l.Housekeep(t.Context(), 0); err != nil || n != 1 {
		t.Errorf("Housekeep = %d, %v, want 1: what runs is kept", n, err)
	}
}
