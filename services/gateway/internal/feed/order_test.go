package feed

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

func ev(run, epoch, number int64) *runv1.Event {
	return &runv1.Event{RunOrdinal: run, Epoch: epoch, Number: number, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{}}}
}

func done(run, epoch, number int64) *runv1.Event {
	return &runv1.Event{RunOrdinal: run, Epoch: epoch, Number: number, Body: &runv1.Event_Done{Done: &runv1.Done{}}}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		first *runv1.Event // known from the middle
		in    []*runv1.Event
		want  []verdict
	}{
		{"a run", nil, []*runv1.Event{ev(1, 1, 0), ev(1, 1, 1), done(1, 1, 2)}, []verdict{pass, pass, pass}},
		{"twice", nil, []*runv1.Event{ev(1, 1, 0), ev(1, 1, 0), ev(1, 1, 1), ev(1, 1, 0)}, []verdict{pass, drop, pass, drop}},
		{"taken over", nil, []*runv1.Event{ev(1, 1, 0), ev(1, 2, 1), ev(1, 1, 1), ev(1, 1, 2), ev(1, 2, 2)}, []verdict{pass, pass, drop, drop, pass}},
		{"after the end", nil, []*runv1.Event{done(1, 1, 0), ev(1, 1, 1), done(1, 2, 1)}, []verdict{pass, drop, drop}},
		{"two runs interleaved", nil, []*runv1.Event{ev(1, 1, 0), ev(2, 0, 0), done(2, 0, 1), ev(1, 1, 1), done(2, 0, 1)}, []verdict{pass, pass, pass, pass, drop}},
		{"numbers missing", nil, []*runv1.Event{ev(1, 1, 0), ev(1, 1, 2), ev(1, 1, 1)}, []verdict{pass, passAfterHole, drop}},
		{"the log lost its tail", nil, []*runv1.Event{ev(1, 1, 0), ev(1, 1, 1), ev(1, 1, 2), ev(1, 2, 1), ev(1, 1, 2), ev(1, 2, 2)}, []verdict{pass, pass, pass, passAfterHole, drop, pass}},
		{"a run's beginning is missing", nil, []*runv1.Event{ev(1, 1, 0), ev(2, 1, 3)}, []verdict{pass, passAfterHole}},
		{"begun in the middle", nil, []*runv1.Event{ev(3, 1, 7), ev(3, 1, 8)}, []verdict{pass, pass}},
		{"head known", ev(3, 2, 7), []*runv1.Event{ev(3, 2, 7), ev(3, 2, 8), ev(3, 2, 10)}, []verdict{drop, pass, passAfterHole}},
		{"head is a zombie's", ev(3, 1, 20), []*runv1.Event{ev(3, 2, 16), ev(3, 1, 21), ev(3, 2, 17)}, []verdict{pass, drop, pass}},
		{"another run than the head's", done(4, 0, 1), []*runv1.Event{ev(3, 1, 7), ev(3, 1, 8), ev(5, 1, 0)}, []verdict{pass, pass, pass}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOrder()
			if tt.first != nil {
				o.begin(tt.first)
			}
			var got []verdict
			for _, e := range tt.in {
				got = append(got, o.admit(e))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("verdicts differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrderStaysSmall(t *testing.T) {
	t.Parallel()
	o := newOrder()
	for run := int64(1); run <= 10*maxRuns; run++ {
		o.admit(ev(run, 1, 0))
		o.admit(done(run, 1, 1))
	}
	if len(o.runs) > maxRuns {
		t.Errorf("order remembers %d runs, want %d at most", len(o.runs), maxRuns)
	}
	if got := o.admit(done(1, 1, 1)); got != drop {
		t.Errorf("admit of a forgotten run's end = %v, want it dropped", got)
	}
}

func TestOrderLearns(t *testing.T) {
	t.Parallel()
	o, log := newOrder(), newOrder()
	o.begin(ev(2, 1, 5))
	for _, e := range []*runv1.Event{ev(1, 1, 0), done(1, 1, 1), ev(2, 1, 0), ev(2, 2, 1), ev(2, 2, 2)} {
		log.admit(e)
	}
	o.learn(log)
	if got := o.admit(ev(2, 2, 3)); got != pass {
		t.Errorf("admit of what follows the log = %v, want it to pass", got)
	}
	if got := o.admit(done(1, 1, 1)); got != drop {
		t.Errorf("admit of an end that the log has = %v, want it dropped", got)
	}
}

func TestParsePosition(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"0-0": true, "1-2": true, "12-345": true, "": false, "1": false, "1-": false, "-1": false, "1--1": false, "+1-1": false, "1-01": false, "1-1 ": false, "1-\x00": false, "9999999999999999999-1": false} {
		p, ok := ParsePosition(in)
		if ok != want || ok && p.String() != in {
			t.Errorf("ParsePosition(%q) = %v, %v, want %v", in, p, ok, want)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add("1-2")
	f.Fuzz(func(t *testing.T, s string) {
		if p, ok := ParsePosition(s); ok && p.String() != s {
			t.Errorf("ParsePosition(%q) = %v, which is written %q", s, p, p.String())
		}
	})
}

func TestRing(t *testing.T) {
	t.Parallel()
	r := newRing(3, 100)
	f := func(n int64, size int) *frame {
		return &frame{place: place(n), pos: Position{1, n}, data: make([]byte, size)}
	}
	r.push(f(5, 10))
	r.fill([]*frame{f(1, 10), f(2, 10), f(3, 10), f(4, 10)})
	if i, ok := r.find(Position{1, 3}); !ok || i != r.first || len(r.frames) != 3 {
		t.Errorf("find in a filled ring = %d, %v of %d, want the first of 3", i, ok, len(r.frames))
	}
	if _, ok := r.after(1); ok {
		t.Error("after(1) = true, want false: 2 had no room")
	}
	if i, ok := r.after(2); !ok || i != r.first {
		t.Errorf("after(2) = %d, %v, want the first", i, ok)
	}
	end := r.end()
	r.push(f(6, 10))
	if i, ok := r.find(Position{1, 6}); !ok || i != end {
		t.Errorf("find of the newest = %d, %v, want %d", i, ok, end)
	}
	if _, ok := r.find(Position{1, 3}); ok {
		t.Error("find of what was pushed out = true")
	}
	r.push(f(7, 95))
	if len(r.frames) != 1 || r.bytes != 95 {
		t.Errorf("ring holds %d frames of %d bytes, want the big one alone", len(r.frames), r.bytes)
	}
	if i, ok := r.after(7); !ok || i != r.end() {
		t.Errorf("after the newest = %d, %v, want the end", i, ok)
	}
	r.push(&frame{place: 7, synthetic: true, kind: hole})
	if i, ok := r.after(7); !ok || i != r.end()-1 {
		t.Errorf("after(7) with something made up = %d, %v, want that", i, ok)
	}
}

func TestContents(t *testing.T) {
	t.Parallel()
	at := func(run, number int64) *frame { return &frame{pos: Position{run, number}} }
	for _, tt := range []struct {
		name    string
		c       Contents
		id      string
		covered []*frame
		not     []*frame
	}{
		{"no run", Contents{committed: -1}, "0-0", nil, []*frame{at(1, 0)}},
		{"all ended", Contents{last: Position{2, 9}, committed: -1}, "2-9", []*frame{at(1, 50), at(2, 9)}, []*frame{at(2, 10), at(3, 0)}},
		{"active", Contents{last: Position{3, 5}, active: 3, committed: 5}, "3-5", []*frame{at(2, 50), at(3, 5)}, []*frame{at(3, 6), at(4, 0)}},
		{"active, nothing committed", Contents{last: Position{2, 9}, active: 3, committed: -1}, "2-9", []*frame{at(2, 9)}, []*frame{at(3, 0)}},
		{"a queued one was cancelled", Contents{last: Position{4, 1}, active: 3, committed: 25}, "3-25", []*frame{at(3, 25), at(4, 0), at(4, 1)}, []*frame{at(3, 26), at(5, 0)}},
	} {
		if got := tt.c.Position().String(); got != tt.id {
			t.Errorf("%s: Position() = %s, want %s", tt.name, got, tt.id)
		}
		for _, f := range tt.covered {
			if !tt.c.covers(f) {
				t.Errorf("%s: covers(%s) = false, want true", tt.name, f.pos)
			}
		}
		for _, f := range append(tt.not, &frame{kind: hole}) {
			if tt.c.covers(f) {
				t.Errorf("%s: covers(%s) = true, want false", tt.name, f.pos)
			}
		}
	}
}
