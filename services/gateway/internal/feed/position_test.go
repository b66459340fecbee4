package feed

import "testing"

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
		t.Error("find of an evicted frame = true")
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
		t.Errorf("after(7) with a synthesized frame = %d, %v, want that", i, ok)
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

func TestMayKnow(t *testing.T) {
	t.Parallel()
	active := Contents{last: Position{3, 5}, active: 3, committed: 5}
	ended := Contents{last: Position{3, 5}, committed: -1}
	for _, tt := range []struct {
		name     string
		c        Contents
		may, not []Position
	}{
		{"no run", Contents{committed: -1}, []Position{{0, 0}, {1, 0}, {1, 1}}, []Position{{1, 2}, {999, 0}}},
		{"active", active, []Position{{0, 0}, {1, 7}, {3, 5}, {3, 500}, {4, 1}}, []Position{{4, 2}, {999, 0}}},
		{"all ended", ended, []Position{{0, 0}, {2, 50}, {3, 5}, {4, 0}}, []Position{{3, 6}, {4, 2}, {999, 0}}},
	} {
		for _, p := range tt.may {
			if !tt.c.MayKnow(p) {
				t.Errorf("%s: MayKnow(%s) = false, want true", tt.name, p)
			}
		}
		for _, p := range tt.not {
			if tt.c.MayKnow(p) {
				t.Errorf("%s: MayKnow(%s) = true, want false", tt.name, p)
			}
		}
	}
}
