package choice_test

import (
	"errors"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/choice"
)

func asExhausted(err error, e **choice.Exhausted) bool { return errors.As(err, e) }

// One wrong setting of one member: every account says that it may not, again and again,
// and nobody else notices.
func TestDenied(t *testing.T) {
	t.Parallel()
	for _, s := range []choice.Strategy{choice.Sticky, choice.RoundRobin, choice.Hybrid} {
		b := newBench(t, 3, with(s))
		wrong := choice.Request{Family: "opus", Model: "opus-x"}
		for range 20 {
			k := b.pick(wrong)
			b.pool.Report(b.now, k, choice.Outcome{Reason: quota, Denied: true, Status: 403})
		}
		for i, st := range b.pool.States(b.now) {
			if st.Health != 100 || len(st.Limits) > 0 {
				t.Errorf("%s: account %d has health %v and limits %+v, want neither touched", s, i, st.Health, st.Limits)
			}
		}
		if got := b.use(choice.Request{Family: "opus", Model: "opus-y"}, ok, ok, ok); contains(got, '-') {
			t.Errorf("%s: others of the family go to %s, want accounts", s, got)
		}
		if got := b.use(wrong, ok, ok, ok); contains(got, '-') {
			t.Errorf("%s: the next request for the model goes to %s, want accounts", s, got)
		}
	}

	// Where it is an account's, requests for the model go to those that may.
	b := newBench(t, 3, nil)
	opus := choice.Request{Model: "opus-x"}
	for range 2 {
		b.pool.Report(b.now, b.pick(opus), choice.Outcome{Reason: quota, Denied: true})
	}
	b.want("passed over", b.use(opus, ok, ok), "cc")
	b.want("for that model only", b.use(choice.Request{Model: "haiku"}, ok), "a")
	b.pool.SetMembers(b.now, b.now.Add(time.Second), []id.Account{b.ids[1], b.ids[2], b.ids[0]})
	b.want("also in their new places", b.use(opus, ok), "c")
	b.want("when the other is parked they are asked", b.use(choice.Request{Model: "opus-x", Tried: b.ids[2:]}, ok), "a")
	b.want("and forgiven when they may after all", b.use(opus, ok), "a")

	// Without a model there is nothing to remember it by.
	b = newBench(t, 2, nil)
	b.pool.Report(b.now, b.pick(none), choice.Outcome{Reason: quota, Denied: true})
	b.want("no model", b.use(none, ok), "a")
}

// An account without a token is passed over while there are others, for a time, and
// parks nothing.
func TestNoToken(t *testing.T) {
	t.Parallel()
	for _, s := range []choice.Strategy{choice.Sticky, choice.RoundRobin, choice.Hybrid} {
		b := newBench(t, 2, with(s))
		session := choice.Request{Session: id.New[id.Session]()}
		b.want("first", b.use(session, ok), "a")
		k := b.pick(choice.Request{Tried: b.ids[1:]})
		b.pool.Report(b.now, k, choice.Outcome{Reason: choice.Unreachable, Unsent: true, Later: 5 * time.Second})
		b.want("the other one", b.use(session, ok, ok), "bb")
		b.want("it alone", b.use(choice.Request{Tried: b.ids[1:]}, choice.Cancelled), "a")
		if st := b.state(); st.Health != 100 || len(st.Limits) > 0 {
			t.Errorf("%s: health %v and limits %+v, want neither touched", s, st.Health, st.Limits)
		}
		b.after(5 * time.Second)
		if got := b.use(none, ok) + b.use(none, ok); s == choice.RoundRobin && !contains(got, 'a') {
			t.Errorf("round-robin chose %s after that time, want both", got)
		}
	}
}

// Models without end are remembered within bounds.
func TestDeniedModelsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	for i := range 1000 {
		r := choice.Request{Model: string(rune('A' + i))}
		b.pool.Report(b.now, b.pick(r), choice.Outcome{Reason: quota, Denied: true})
		b.want("the latest is known", b.use(r, ok), "b")
	}
	if n := b.pool.Shunned(); n > 65 {
		t.Errorf("%d models are remembered", n)
	}
}
