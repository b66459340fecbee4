package runorder_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/runorder"
)

const (
	drop    = runorder.Drop
	pass    = runorder.Pass
	gap     = runorder.Gap
	unknown = runorder.Unknown
)

func ev(run, epoch, number int64) runorder.Span { return row(run, epoch, number, number) }

func end(run, epoch, number int64) runorder.Span {
	s := ev(run, epoch, number)
	s.Ends = true
	return s
}

func row(run, epoch, first, last int64) runorder.Span {
	return runorder.Span{Run: run, Epoch: epoch, First: first, Last: last}
}

type spans = []runorder.Span

func TestOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		begin spans // for Begin
		in    spans
		want  []runorder.Verdict
	}{
		{"a run", nil, spans{ev(1, 1, 0), ev(1, 1, 1), end(1, 1, 2)}, []runorder.Verdict{pass, pass, pass}},
		{"twice", nil, spans{ev(1, 1, 0), ev(1, 1, 0), ev(1, 1, 1), ev(1, 1, 0)}, []runorder.Verdict{pass, drop, pass, drop}},
		{"taken over", nil, spans{ev(1, 1, 0), ev(1, 2, 1), ev(1, 1, 1), ev(1, 1, 2), ev(1, 2, 2)}, []runorder.Verdict{pass, pass, drop, drop, pass}},
		{"after the end", nil, spans{end(1, 1, 0), ev(1, 1, 1), end(1, 2, 1)}, []runorder.Verdict{pass, drop, drop}},
		{"one after the other", nil, spans{end(1, 1, 0), end(2, 1, 0), ev(3, 2, 0)}, []runorder.Verdict{pass, pass, pass}},
		{"one that was cancelled while it waited", nil, spans{ev(1, 1, 0), ev(2, 0, 0), end(2, 0, 1), end(1, 1, 1), ev(3, 1, 0)}, []runorder.Verdict{pass, unknown, pass, pass, pass}},
		{"one that was cancelled before its turn", nil, spans{end(1, 1, 0), end(3, 0, 0), ev(2, 1, 0), end(2, 1, 1), ev(4, 1, 0)}, []runorder.Verdict{pass, unknown, pass, pass, pass}},

		{"numbers missing", nil, spans{ev(1, 1, 0), ev(1, 1, 2), ev(1, 1, 1)}, []runorder.Verdict{pass, gap, drop}},
		{"numbers missing at a claim", nil, spans{ev(1, 1, 0), ev(1, 2, 2)}, []runorder.Verdict{pass, gap}},
		{"the log lost its end", nil, spans{ev(1, 1, 0), ev(1, 1, 1), ev(1, 1, 2), ev(1, 2, 1), ev(1, 1, 2), ev(1, 2, 2)}, []runorder.Verdict{pass, pass, pass, gap, drop, pass}},
		{"a run's beginning is missing", nil, spans{end(1, 1, 0), ev(2, 1, 3), ev(2, 1, 4)}, []runorder.Verdict{pass, gap, pass}},
		{"a run's end is missing", nil, spans{ev(1, 1, 0), ev(2, 1, 0), end(2, 1, 1), ev(3, 1, 0)}, []runorder.Verdict{pass, gap, pass, pass}},
		{"the end of a cancelled one is missing", nil, spans{end(1, 1, 0), ev(2, 0, 0), ev(3, 1, 0)}, []runorder.Verdict{pass, unknown, gap}},
		{"a run is missing", nil, spans{end(1, 1, 0), ev(3, 1, 0), end(3, 1, 1), ev(4, 1, 0)}, []runorder.Verdict{pass, gap, pass, pass}},
		{"a run comes after the next", nil, spans{end(1, 1, 0), ev(3, 1, 0), ev(2, 1, 0), ev(2, 1, 7)}, []runorder.Verdict{pass, gap, drop, drop}},

		{"begun in the middle", nil, spans{ev(3, 1, 7), ev(3, 1, 8)}, []runorder.Verdict{unknown, pass}},
		{"head known", spans{ev(3, 2, 7)}, spans{ev(3, 2, 7), ev(3, 2, 8), ev(3, 2, 10)}, []runorder.Verdict{drop, pass, gap}},
		{"head is a zombie's", spans{ev(3, 1, 20)}, spans{ev(3, 2, 16), ev(3, 1, 21), ev(3, 2, 17)}, []runorder.Verdict{pass, drop, pass}},
		{"head is an end", spans{end(3, 1, 7)}, spans{ev(4, 1, 0), ev(3, 1, 8)}, []runorder.Verdict{pass, drop}},
		{"head is an end, and a beginning is missing", spans{end(3, 1, 7)}, spans{ev(4, 1, 2), ev(4, 1, 3)}, []runorder.Verdict{gap, pass}},
		{"head is an end, and another was said before it", spans{end(3, 1, 7)}, spans{ev(5, 1, 0), ev(5, 1, 1)}, []runorder.Verdict{pass, pass}},
		{"head is an end, and the next one's end is missing", spans{end(3, 1, 7)}, spans{ev(4, 1, 0), ev(5, 1, 0)}, []runorder.Verdict{pass, gap}},
		{"head is of one that waited", spans{end(4, 0, 1)}, spans{ev(3, 1, 7), ev(3, 1, 8), end(3, 1, 9), ev(5, 1, 0)}, []runorder.Verdict{unknown, pass, pass, pass}},
		{"head is of one that waited, and an end is missing", spans{end(4, 0, 1)}, spans{ev(3, 1, 7), ev(5, 1, 0)}, []runorder.Verdict{unknown, gap}},

		{"rows", nil, spans{row(1, 1, 0, 9), row(1, 1, 10, 19), row(1, 1, 5, 19), row(1, 2, 20, 22)}, []runorder.Verdict{pass, pass, drop, pass}},
		{"rows that lap over", nil, spans{row(1, 1, 0, 9), row(1, 1, 5, 12)}, []runorder.Verdict{pass, pass}},
		{"a claim laps over", nil, spans{row(1, 1, 0, 9), row(1, 2, 5, 12)}, []runorder.Verdict{pass, gap}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := runorder.New()
			for _, s := range tt.begin {
				o.Begin(s)
			}
			var got []runorder.Verdict
			for _, s := range tt.in {
				judged, _ := o.Judge(s)
				v, _ := o.Admit(s)
				if got = append(got, v); judged != v {
					t.Errorf("Judge(%+v) = %d, and Admit = %d", s, judged, v)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("verdicts differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	o := runorder.New()
	o.Admit(row(1, 1, 0, 9))
	if v, skip := o.Admit(row(1, 1, 5, 12)); v != pass || skip != 5 {
		t.Errorf("Admit(5 to 12 after 9) = %d, %d, want it passed from the sixth on", v, skip)
	}
	if v, skip := o.Admit(row(1, 2, 11, 14)); v != gap || skip != 0 {
		t.Errorf("Admit(11 to 14 of a newer claim after 12) = %d, %d, want a gap and all of it", v, skip)
	}
}

func TestExpected(t *testing.T) {
	t.Parallel()
	o := runorder.New()
	o.Admit(end(1, 1, 3))
	o.Expect(2, "two")
	if p, ok := o.Progress(2); !ok || p.Number != -1 || p.ID != "two" {
		t.Errorf("Progress of an expected run = %+v, %v, want that nothing came", p, ok)
	}
	if v, _ := o.Judge(end(2, 0, 4)); v != gap {
		t.Errorf("Judge(its end alone) = %d, want a gap", v)
	}
	if v, _ := o.Admit(ev(2, 1, 0)); v != pass {
		t.Errorf("Admit(its beginning) = %d, want it passed", v)
	}
	for n, p := range o.Open() {
		if n != 2 || p.Ended {
			t.Errorf("Open yields %d, %+v, want run 2 alone", n, p)
		}
	}
}

func TestStaysSmall(t *testing.T) {
	t.Parallel()
	o := runorder.New()
	const many = 1000
	for run := int64(1); run <= many; run++ {
		for _, s := range (spans{ev(run, 1, 0), end(run, 1, 1)}) {
			if v, _ := o.Admit(s); v != pass {
				t.Fatalf("Admit(%+v) = %d, want it passed", s, v)
			}
		}
	}
	known := 0
	for run := int64(1); run <= many; run++ {
		if _, ok := o.Progress(run); ok {
			known++
		}
	}
	if known == 0 || known > many/4 {
		t.Errorf("%d of %d runs are remembered, want the newest few", known, many)
	}
	if v, _ := o.Admit(end(1, 1, 1)); v != drop {
		t.Errorf("Admit of a forgotten run's end = %d, want it dropped", v)
	}
}

func TestLearn(t *testing.T) {
	t.Parallel()
	o, log := runorder.New(), runorder.New()
	o.Begin(ev(2, 1, 5))
	for _, s := range (spans{ev(1, 1, 0), end(1, 1, 1), ev(2, 1, 0), ev(2, 2, 1), ev(2, 2, 2)}) {
		log.Admit(s)
	}
	o.Learn(log)
	if v, _ := o.Admit(ev(2, 2, 3)); v != pass {
		t.Errorf("Admit of what follows the log = %d, want it passed", v)
	}
	if v, _ := o.Admit(end(1, 1, 1)); v != drop || !o.Seen(end(1, 1, 1)) {
		t.Errorf("Admit of an end that the log has = %d, want it seen and dropped", v)
	}
}

// history generates the stream of a session: the events that count, with duplicates and, if
// wanted, zombies' events in between.
func history(r *rand.Rand, zombies bool) (stream spans, counts []bool) {
	say := func(s runorder.Span, real bool) { stream, counts = append(stream, s), append(counts, real) }
	waiting := int64(0) // the next run, if it was cancelled while it waited
	for run := int64(1); run <= 5; run++ {
		if run == waiting {
			continue
		}
		epoch, n := int64(1), 1+r.Int64N(8)
		for number := int64(0); number <= n; number++ {
			if number > 0 && r.IntN(6) == 0 {
				epoch++
			}
			s := ev(run, epoch, number)
			s.Ends = number == n
			say(s, true)
			switch r.IntN(6) {
			case 0:
				say(s, false)
			case 1:
				if zombies && epoch > 1 {
					say(ev(run, epoch-1, number+r.Int64N(3)), false)
				}
			case 2:
				if zombies && run > 1 && run-1 != waiting {
					say(ev(run-1, 1, 20), false)
				}
			case 3:
				if waiting < run && !s.Ends {
					waiting = run + 1
					say(ev(waiting, 0, 0), true)
					say(end(waiting, 0, 1), true)
				}
			}
		}
	}
	return stream, counts
}

// A reader of a whole stream gets the events that count, and notices missing ones.
func TestHistories(t *testing.T) {
	t.Parallel()
	for range 5000 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		zombies := r.IntN(2) == 0
		stream, counts := history(r, zombies)
		o := runorder.New()
		for i, s := range stream {
			v, _ := o.Admit(s)
			if shown := v == pass || v == unknown; shown != counts[i] {
				t.Fatalf("seed %d: Admit(%+v) = %d in the whole stream %v", seed, s, v, stream[:i+1])
			}
		}
		// A reader that begins in the middle, with an event that counts, misses nothing.
		begin := r.IntN(len(stream))
		for !counts[begin] {
			begin--
		}
		o = runorder.New()
		if r.IntN(2) == 0 {
			o.Begin(stream[begin])
		} else {
			o.Admit(stream[begin])
		}
		for i, s := range stream[begin+1:] {
			if v, _ := o.Admit(s); v == gap || v == drop && counts[begin+1+i] {
				t.Fatalf("seed %d: Admit(%+v) = %d, begun with %+v in the whole stream %v", seed, s, v, stream[begin], stream[:begin+i+2])
			}
		}
		if zombies {
			continue // a zombie's event may replace the missing one, unnoticed
		}
		// Without some events in the middle, and with a later one that counts.
		last := len(stream) - 1
		for !counts[last] {
			last--
		}
		from := 1 + r.IntN(last)
		to := from + r.IntN(last-from+1)
		rest := stream[to:]
		if !isMissed(stream[from:to], counts[from:to], rest) {
			continue
		}
		o, told := runorder.New(), false
		for _, s := range slices.Concat(stream[:from], rest) {
			v, _ := o.Admit(s)
			told = told || v == gap
		}
		if !told {
			t.Fatalf("seed %d: nothing is told missing without %v in %v", seed, stream[from:to], stream)
		}
	}
}

// isMissed reports whether a reader of the rest can notice that an event that counts is missing:
// no duplicate replaces it, and for a run that never had a runner, the next run has begun.
func isMissed(gone spans, counts []bool, rest spans) bool {
	next := slices.ContainsFunc(rest, func(s runorder.Span) bool { return s.Epoch > 0 && s.First == 0 })
	for i, s := range gone {
		if counts[i] && !slices.Contains(rest, s) && (s.Epoch > 0 || next) {
			return true
		}
	}
	return false
}
