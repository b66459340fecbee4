package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// must returns the rows; after an error the test misses some.
func must[T any](all []T, _ error) []T { return all }

func TestLearn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, mine := t.Context(), id.New[id.Workspace]()
	a := w.add(mine, "openai", "a")
	at := time.Now().Add(-24 * time.Hour).Truncate(time.Microsecond).UTC()
	limit := func(began, until time.Duration) store.Limit {
		l := store.Limit{Workspace: mine, Provider: "openai", Account: a.ID, Family: "opus", At: at.Add(began), Reason: "RATE_LIMIT_EXCEEDED", Status: 429, Raw: "retry-after: 5"}
		if until > 0 {
			l.Until, l.Soon = at.Add(until), at.Add(until)
		}
		return l
	}
	stat := store.Stat{Workspace: mine, Provider: "openai", Account: a.ID, Reason: "OK", Requests: 2, TokensIn: 10, TokensOut: 5, CostMicros: 7}
	health := func(n float64, after time.Duration) store.Health {
		return store.Health{Workspace: mine, Provider: "openai", Account: a.ID, Health: n, At: at.Add(after)}
	}
	one := uuid.New()
	for _, l := range []store.Learned{
		{Instance: one, Sequence: 1, Stats: []store.Stat{stat}, Limits: []store.Limit{limit(0, time.Minute)}, Health: []store.Health{health(90, time.Second)}},
		{Instance: one, Sequence: 1, Stats: []store.Stat{stat}},                                                         // its answer got lost
		{Instance: uuid.New(), Sequence: 1, Stats: []store.Stat{stat}, Limits: []store.Limit{limit(0, 30*time.Second)}}, // shorter
		{Instance: one, Sequence: 2, Stats: []store.Stat{stat}, Limits: []store.Limit{limit(-time.Hour, 10*time.Hour)}}, // older
		{Health: []store.Health{health(50, 0)}},
	} {
		if err := w.store.Learn(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	read := func() store.Pool {
		t.Helper()
		p, err := w.store.Pool(ctx, mine, "openai")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := read()
	if diff := cmp.Diff([]store.Limit{limit(0, time.Minute)}, p.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]store.Health{health(90, time.Second)}, p.Health); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	stats, err := w.store.Stats(ctx, mine)
	want := stat
	want.Requests, want.TokensIn, want.TokensOut, want.CostMicros = 6, 30, 15, 21
	if diff := cmp.Diff([]store.Stat{want}, stats); diff != "" || err != nil {
		t.Errorf("Stats: %v (-want +got):\n%s", err, diff)
	}
	if err := w.store.Learn(ctx, store.Learned{Limits: []store.Limit{limit(2*time.Minute, 0)}}); err != nil {
		t.Fatal(err)
	}
	if p := read(); len(p.Limits) != 1 || !p.Limits[0].Until.IsZero() {
		t.Errorf("after the clearing: %+v", p.Limits)
	}
	// A reset wins over what an instance learned before it and writes after it.
	if err := w.store.Reset(ctx, mine, a.ID, store.Event{Origin: "workspace", Service: "test"}); err != nil {
		t.Fatal(err)
	}
	early, after := limit(0, time.Hour), limit(0, time.Hour)
	early.Family, after.Family = "sonnet", "haiku"
	early.At, after.At = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if err := w.store.Learn(ctx, store.Learned{Limits: []store.Limit{early, after}}); err != nil {
		t.Fatal(err)
	}
	var families []string
	for _, l := range read().Limits {
		if !l.Until.IsZero() {
			families = append(families, l.Family)
		}
	}
	if diff := cmp.Diff([]string{"haiku"}, families); diff != "" {
		t.Errorf("limits after a reset (-want +got):\n%s", diff)
	}
	for _, tt := range []struct{ set, want string }{{`{"strategy": "hybrid"}`, `{"strategy": "hybrid"}`}, {`{}`, ``}} {
		err := w.store.ChangeSettings(ctx, mine, "openai", store.Event{Origin: "workspace", Service: "test"}, func([]byte) ([]byte, string, error) {
			return []byte(tt.set), "settings", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := read().Settings; string(got) != tt.want {
			t.Errorf("settings = %s, want %s", got, tt.want)
		}
	}
	if err := w.store.Remove(ctx, mine, a.ID, store.Event{Origin: "workspace", Service: "test"}); err != nil {
		t.Fatal(err)
	}
	late := store.Learned{
		Instance: one, Sequence: 3, Stats: []store.Stat{stat}, Limits: []store.Limit{limit(time.Hour, 2*time.Hour)}, Health: []store.Health{health(80, time.Hour)},
	}
	if err := w.store.Learn(ctx, late); err != nil { // by requests that were out
		t.Fatal(err)
	}
	if p, stats := read(), must(w.store.Stats(ctx, mine)); len(p.Accounts)+len(p.Limits)+len(p.Health)+len(stats) > 0 {
		t.Errorf("after the removal there are %+v and %+v", p, stats)
	}
	late.Sequence, late.Unstored = 4, []id.Account{a.ID} // as if it were the environment's
	old, recent := limit(0, time.Minute), limit(0, time.Minute)
	old.Family, old.At, old.Until = "haiku", time.Now().Add(-30*24*time.Hour), time.Now().Add(-29*24*time.Hour)
	recent.At = time.Now().Add(-time.Hour)
	recent.Until, recent.Soon = recent.At, recent.At
	late.Limits = []store.Limit{old, recent}
	if err := w.store.Learn(ctx, late); err != nil {
		t.Fatal(err)
	}
	if p, stats := read(), must(w.store.Stats(ctx, mine)); len(p.Limits) != 2 || len(p.Health) != 1 || len(stats) != 1 {
		t.Errorf("of an account that is not stored there are %+v and %+v", p, stats)
	}
	// Another instance that starts removes what has been over for long.
	if err := w.store.Learn(ctx, store.Learned{Instance: uuid.New(), Sequence: 1, Stats: []store.Stat{stat}}); err != nil {
		t.Fatal(err)
	}
	if p := read(); len(p.Limits) != 1 || p.Limits[0].Family != recent.Family {
		t.Errorf("limits after a start: %+v, want the recent one", p.Limits)
	}
	// Who changes nothing leaves nothing.
	err = w.store.ChangeSettings(ctx, mine, "invented", store.Event{Origin: "workspace", Service: "test"}, func(now []byte) ([]byte, string, error) { return now, "", nil })
	if all := must(w.store.Settings(ctx, mine)); err != nil || len(all) != 1 {
		t.Errorf("ChangeSettings = %v, and there are %+v, want those of openai alone", err, all)
	}
}

// A clock that is far ahead does not keep others from storing what they learn: its dates are
// corrected, and stored ones are replaced.
func TestLearnFromWrongClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, f := newFileOf(t)
	inFile := store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}
	if err := file.AddDataKey(t.Context(), id.Workspace{}, vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("w")}); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Add(t.Context(), inFile, shared); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		store   *store.Store
		account id.Account
		behind  func(d time.Duration) error // has all dates be so much later
	}{
		"database": {w.store, w.add(id.Workspace{}, "openai", "a").ID, func(d time.Duration) error {
			return w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				for _, sql := range []string{`UPDATE account_limits SET at = at + $1, until = until + $1, soon = soon + $1`, `UPDATE account_health SET at = at + $1`} {
					if _, err := tx.Exec(ctx, sql, d); err != nil {
						return err
					}
				}
				return nil
			})
		}},
		"file": {file, inFile.ID, func(d time.Duration) error {
			return f.Update(t.Context(), func(st *accountfile.State) error {
				for i := range st.Limits {
					x := &st.Limits[i]
					x.At, x.Until, x.Soon = x.At.Add(d), x.Until.Add(d), x.Soon.Add(d)
				}
				for i := range st.Health {
					st.Health[i].At = st.Health[i].At.Add(d)
				}
				return nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			learn := func(clock, wait time.Duration, health float64) {
				t.Helper()
				at := time.Now().Add(clock)
				err := tt.store.Learn(t.Context(), store.Learned{
					Limits: []store.Limit{{Provider: "openai", Account: tt.account, At: at, Until: at.Add(wait), Soon: at.Add(wait), Reason: "RATE_LIMIT_EXCEEDED"}},
					Health: []store.Health{{Provider: "openai", Account: tt.account, Health: health, At: at}},
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			check := func(what string, wait time.Duration, health float64) {
				t.Helper()
				p, err := tt.store.Pool(t.Context(), id.Workspace{}, "openai")
				if err != nil || len(p.Limits) != 1 || len(p.Health) != 1 {
					t.Fatalf("%s: Pool = %+v, %v, want a limit and the health", what, p, err)
				}
				l, h := p.Limits[0], p.Health[0]
				soon := func(at time.Time) bool { return time.Until(at).Abs() < time.Minute }
				if !soon(l.At) || !soon(l.Until.Add(-wait)) || !soon(l.Soon.Add(-wait)) || !soon(h.At) || h.Health != health {
					t.Errorf("%s: a limit %+v and the health %+v, want one of %v and %v from now on", what, l, h, wait, health)
				}
			}
			learn(time.Hour, 30*time.Second, 90)
			check("a clock that is an hour ahead", 30*time.Second, 90)
			learn(0, 2*time.Hour, 80)
			check("one that is right, after it", 2*time.Hour, 80)
			if err := tt.behind(3 * time.Hour); err != nil {
				t.Fatal(err)
			}
			learn(0, 4*time.Hour, 70)
			check("one that is right, after rows of the future", 4*time.Hour, 70)
		})
	}
}
