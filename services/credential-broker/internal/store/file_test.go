package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func newFile(t *testing.T) *store.Store {
	t.Helper()
	s, _ := newFileOf(t)
	return s
}

func newFileOf(t *testing.T) (*store.Store, *accountfile.File) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	f, err := accountfile.Open(t.Context(), filepath.Join(t.TempDir(), "accounts.json"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return store.InFile(f, log), f
}

var shared = store.Event{Origin: "shared", Service: "test"}

// step is one thing that is done to both.
type step struct {
	name string
	do   func(ctx context.Context, s *store.Store) error
}

// history makes up steps. What they are about is decided once, so that both get the same.
type history struct {
	r        *rand.Rand
	accounts []id.Account
	instance uuid.UUID
	sequence int64
	keys     int
	at       time.Time
}

// unstored is the environment's account.
var unstored = id.New[id.Account]()

func (h *history) account() id.Account {
	switch h.r.IntN(20) {
	case 0:
		return id.New[id.Account]() // nobody's
	case 1:
		return unstored
	}
	if len(h.accounts) == 0 {
		return unstored
	}
	return h.accounts[h.r.IntN(len(h.accounts))]
}

func (h *history) provider() string { return []string{"openai", "anthropic"}[h.r.IntN(2)] }

func (h *history) limit() store.Limit {
	l := store.Limit{
		Provider: h.provider(), Account: h.account(),
		Family: []string{"", "opus"}[h.r.IntN(2)], At: h.at.Add(time.Duration(h.r.IntN(100)) * time.Second), Reason: "RATE_LIMIT_EXCEEDED", Status: 429, Step: h.r.IntN(3),
	}
	if h.r.IntN(4) > 0 {
		l.Until = l.At.Add(time.Duration(h.r.IntN(100)) * time.Minute)
		l.Soon = l.Until
	}
	return l
}

func (h *history) learned() store.Learned {
	if h.r.IntN(5) > 0 { // else the same once more: its answer got lost
		h.sequence++
	}
	l := store.Learned{Instance: h.instance, Sequence: h.sequence, Unstored: []id.Account{unstored}}
	l.Limits = append(l.Limits, h.limit())
	l.Health = append(l.Health, store.Health{Provider: h.provider(), Account: h.account(), Health: float64(h.r.IntN(100)), At: h.at.Add(time.Duration(h.r.IntN(100)) * time.Second)})
	l.Stats = append(l.Stats, store.Stat{Provider: h.provider(), Account: h.account(), Reason: "OK", Requests: int64(h.r.IntN(9)), TokensIn: 7, TokensOut: 3, CostMicros: 2})
	return l
}

func (h *history) next() step {
	a, p := h.account(), h.provider()
	switch h.r.IntN(12) {
	case 0, 1:
		n := store.Account{ID: id.New[id.Account](), Provider: p, Profile: p, Label: fmt.Sprint("l", h.r.IntN(100)), Hint: "abcd", FlatRate: h.r.IntN(3) == 0, Sealed: vault.Sealed{KeyVersion: 1 + h.r.IntN(h.keys), Bytes: []byte{1, byte(h.r.IntN(256))}}}
		if h.r.IntN(10) == 0 && len(h.accounts) > 0 {
			n.ID = h.account() // which may be there
		}
		h.accounts = append(h.accounts, n.ID)
		created := shared
		created.Action, created.Account, created.Provider = "created", n.ID, n.Provider
		return step{"add", func(ctx context.Context, s *store.Store) error { _, err := s.Add(ctx, n, created); return err }}
	case 2:
		on := h.r.IntN(2) == 0
		return step{"enable", func(ctx context.Context, s *store.Store) error {
			return s.SetEnabled(ctx, id.Workspace{}, a, on, shared)
		}}
	case 3:
		return step{"switch", func(ctx context.Context, s *store.Store) error { return s.Switch(ctx, id.Workspace{}, a, shared) }}
	case 4:
		return step{"reset", func(ctx context.Context, s *store.Store) error { return s.Reset(ctx, id.Workspace{}, a, shared) }}
	case 5:
		return step{"remove", func(ctx context.Context, s *store.Store) error { return s.Remove(ctx, id.Workspace{}, a, shared) }}
	case 6:
		next := []byte([]string{`{"strategy": "hybrid"}`, `{}`, `{"max_tokens": 7}`}[h.r.IntN(3)])
		said := []string{"settings", ""}[h.r.IntN(2)]
		return step{"settings", func(ctx context.Context, s *store.Store) error {
			return s.ChangeSettings(ctx, id.Workspace{}, p, shared, func([]byte) ([]byte, string, error) { return next, said, nil })
		}}
	case 7:
		if h.r.IntN(2) == 0 {
			a = id.Account{}
		}
		return step{"reset-stats", func(ctx context.Context, s *store.Store) error { return s.ResetStats(ctx, id.Workspace{}, a, shared) }}
	case 8:
		h.keys++
		k := vault.WrappedKey{Version: h.keys - h.r.IntN(2), KEK: "k", Wrapped: []byte{byte(h.r.IntN(256))}}
		h.keys = max(h.keys, k.Version)
		return step{"key", func(ctx context.Context, s *store.Store) error { return s.AddDataKey(ctx, id.Workspace{}, k) }}
	case 9:
		if h.r.IntN(4) == 0 {
			ev := store.Event{Action: "changed", Origin: "shared", Member: id.New[id.Member](), Service: "test", Address: "here", Detail: "keys rotated"}
			return step{"record", func(ctx context.Context, s *store.Store) error { return s.Record(ctx, ev) }}
		}
		flat := h.r.IntN(2) == 0
		return step{"flat", func(ctx context.Context, s *store.Store) error {
			return s.SetFlatRate(ctx, id.Workspace{}, a, flat, shared)
		}}
	}
	l := h.learned()
	return step{"learn", func(ctx context.Context, s *store.Store) error { return s.Learn(ctx, l) }}
}

// told is all that one can ask.
type told struct {
	Accounts, All []store.Account
	Pools         []store.Pool
	Settings      []store.Settings
	Known         store.Known
	Stats         []store.Stat
	Keys          []vault.WrappedKey
	Keyed         []id.Workspace
	Imported      map[string]store.Imported
	Audit         []audit.Row
	Chains        []id.Workspace
	Problems      []hashchain.Problem
	Head          int64
}

func ask(t *testing.T, s *store.Store) (all told) {
	t.Helper()
	ctx, ws := t.Context(), id.Workspace{}
	var errs [13]error
	all.Accounts, errs[0] = s.List(ctx, ws)
	all.All, errs[1] = s.ListAll(ctx)
	for i, provider := range []string{"openai", "anthropic"} {
		p, err := s.Pool(ctx, ws, provider)
		errs[2+i] = err
		// A database returns them in any order.
		slices.SortFunc(p.Limits, func(a, b store.Limit) int {
			return slices.Compare([]string{a.Account.String(), a.Family}, []string{b.Account.String(), b.Family})
		})
		slices.SortFunc(p.Health, func(a, b store.Health) int { return slices.Compare(a.Account.UUID[:], b.Account.UUID[:]) })
		p.Settings, p.Mark = plain(p.Settings), store.Mark{}
		all.Pools = append(all.Pools, p)
	}
	all.Settings, errs[4] = s.Settings(ctx, ws)
	slices.SortFunc(all.Settings, func(a, b store.Settings) int { return slices.Compare([]byte(a.Provider), []byte(b.Provider)) })
	for i := range all.Settings {
		all.Settings[i].Settings = plain(all.Settings[i].Settings)
	}
	all.Known, errs[5] = s.Known(ctx, ws)
	for _, l := range all.Known.Limits {
		slices.SortFunc(l, func(a, b store.Limit) int { return slices.Compare([]byte(a.Family), []byte(b.Family)) })
	}
	all.Stats, errs[6] = s.Stats(ctx, ws)
	all.Keys, errs[7] = s.DataKeys(ctx, ws)
	all.Keyed, errs[8] = s.Keyed(ctx, false, nil, 10)
	all.Imported, errs[9] = s.FindImported(ctx)
	all.Audit, errs[10] = s.Audit(ctx, ws, audit.Query{Before: 40, Limit: 100})
	for i := range all.Audit { // what is each one's own
		r := &all.Audit[i]
		r.ID, r.Prev, r.Hash = uuid.Nil, nil, nil
	}
	all.Chains, errs[11] = s.AuditChains(ctx)
	var head *hashchain.Head
	all.Problems, head, errs[12] = s.VerifyAudit(ctx, ws, hashchain.New(ws))
	if head != nil {
		all.Head = head.Sequence
	}
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return all
}

// plain returns settings without spaces, and nil for none.
func plain(settings []byte) []byte {
	out := slices.DeleteFunc(slices.Clone(settings), func(b byte) bool { return b == ' ' || b == '\n' })
	if string(out) == "{}" {
		return nil
	}
	return out
}

// same compares what was asked for. Times are each store's own, but for those that were
// handed in.
var same = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(5 * time.Second)}

// TestFileIsLikeADatabase does the same things to both and compares what they return.
func TestFileIsLikeADatabase(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			database, file := newWorld(t).store, newFile(t)
			// As of some hours ago, so that a reset is later than what was learned.
			h := &history{r: rand.New(rand.NewPCG(seed, 1)), instance: uuid.New(), keys: 1, at: time.Now().Add(-3 * time.Hour).Truncate(time.Microsecond).UTC()}
			for _, s := range []*store.Store{database, file} {
				if err := s.AddDataKey(t.Context(), id.Workspace{}, vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("w")}); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 150 {
				do := h.next()
				a, b := do.do(t.Context(), database), do.do(t.Context(), file)
				if (a == nil) != (b == nil) || fault.KindOf(a) != fault.KindOf(b) && fault.KindOf(a) != fault.Internal {
					t.Fatalf("step %d, %s: a database says %v, a file %v", n, do.name, a, b)
				}
				if n%5 != 0 {
					continue
				}
				if diff := cmp.Diff(ask(t, database), ask(t, file), same); diff != "" {
					t.Fatalf("after step %d, %s (-database +file):\n%s", n, do.name, diff)
				}
			}
		})
	}
}

// TestFileHasSharedAccountsAlone refuses what only a database has, and shows workspaces
// the shared accounts.
func TestFileHasSharedAccountsAlone(t *testing.T) {
	t.Parallel()
	s, ctx, mine := newFile(t), t.Context(), id.New[id.Workspace]()
	if err := s.AddDataKey(ctx, id.Workspace{}, vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("w")}); err != nil {
		t.Fatal(err)
	}
	a, err := s.Add(ctx, store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}, shared)
	if err != nil {
		t.Fatal(err)
	}
	_, added := s.Add(ctx, store.Account{WorkspaceID: mine, ID: id.New[id.Account](), Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}, shared)
	_, rewrapped := s.Rewrap(ctx, mine, vault.WrappedKey{}, vault.WrappedKey{})
	connected := s.NameConnection(ctx, mine, store.Connection{})
	_, audited := s.Audit(ctx, mine, audit.Query{Limit: 10})
	for what, err := range map[string]error{
		"Add": added, "AddDataKey": s.AddDataKey(ctx, mine, vault.WrappedKey{Version: 1}), "Rewrap": rewrapped, "NameConnection": connected,
		"ChangeSettings":            s.ChangeSettings(ctx, mine, "openai", shared, func([]byte) ([]byte, string, error) { return []byte("{}"), "settings", nil }),
		"ChangeSettings of nothing": s.ChangeSettings(ctx, mine, "openai", shared, func(now []byte) ([]byte, string, error) { return now, "", nil }),
		"ResetStats":                s.ResetStats(ctx, mine, id.Account{}, shared),
		"Audit":                     audited,
	} {
		if f := fault.From(err); err == nil || f.Kind != fault.Conflict || f.Code != "NEEDS_DATABASE" {
			t.Errorf("%s = %v, want a fault NEEDS_DATABASE", what, err)
		}
	}
	for what, err := range map[string]error{
		"SetEnabled": s.SetEnabled(ctx, mine, a.ID, false, shared), "Remove": s.Remove(ctx, mine, a.ID, shared), "Reset": s.Reset(ctx, mine, a.ID, shared),
	} {
		if fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s of a shared account = %v, want NotFound", what, err)
		}
	}
	if p, err := s.Pool(ctx, mine, "openai"); err != nil || len(p.Accounts) != 0 {
		t.Errorf("Pool of a workspace = %+v, %v, want none", p, err)
	}
	if p, err := s.Pool(ctx, id.Workspace{}, "openai"); err != nil || len(p.Accounts) != 1 {
		t.Errorf("Pool = %+v, %v, want the shared account", p, err)
	}
	use := store.Use{Workspace: mine, At: time.Now(), Event: store.Event{Account: a.ID, Provider: "openai", Origin: "shared", Service: "agent-runner"}}
	if err := s.Used(ctx, []store.Use{use}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(ctx, id.Workspace{}, a.ID); err != nil || got.LastUsedAt == nil {
		t.Errorf("Get = %+v, %v, want a last use", got, err)
	}
	if err := s.Used(ctx, []store.Use{use}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Audit(ctx, id.Workspace{}, audit.Query{Limit: 10})
	if err != nil || len(rows) != 2 || rows[0].Action != "used" || rows[0].Account != a.ID || rows[0].Detail != "in workspace "+mine.String() {
		t.Errorf("Audit = %+v, %v, want one use, which says whose workspace it was", rows, err)
	}
}

// TestFileIsBounded refuses one account too many.
func TestFileIsBounded(t *testing.T) {
	t.Parallel()
	s, ctx := newFile(t), t.Context()
	if err := s.AddDataKey(ctx, id.Workspace{}, vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("w")}); err != nil {
		t.Fatal(err)
	}
	for n := range 101 {
		_, err := s.Add(ctx, store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}, shared)
		if want := n == 100; want != (fault.KindOf(err) == fault.Conflict) || !want && err != nil {
			t.Fatalf("Add of account %d = %v", n+1, err)
		}
	}
}
