package feed

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// TestTake checks which frames a viewer gets, and where it stops.
func TestTake(t *testing.T) {
	t.Parallel()
	f := func(run, number int64) *frame {
		p := Position{run, number}
		return &frame{place: place(10*run + number), pos: p, data: []byte(p.String() + " ")}
	}
	end := func(run, number int64, synthetic bool) *frame {
		e := f(run, number)
		e.kind, e.synthetic = runEnd, synthetic
		return e
	}
	gap := &frame{place: 15, kind: hole}
	big := f(1, 2)
	big.data = make([]byte, pullBytes)
	told := &lastSnapshot{contents: Contents{last: Position{1, 9}, active: 1, committed: 1}, until: 20}
	for _, tt := range []struct {
		name   string
		v      Viewer
		frames []*frame
		n      int
		want   string
		what   outcome
		last   Position
	}{
		{"all", Viewer{}, []*frame{f(1, 0), f(1, 1)}, 2, "1-0 1-1 ", everything, Position{1, 1}},
		{"what it has", Viewer{last: Position{1, 1}}, []*frame{f(1, 0), f(1, 1), f(1, 2)}, 3, "1-2 ", everything, Position{1, 2}},
		{"a synthesized end after the real one", Viewer{last: Position{1, 1}}, []*frame{end(1, 1, true), f(2, 0)}, 2, "2-0 ", everything, Position{2, 0}},
		{"a synthesized end", Viewer{last: Position{1, 1}}, []*frame{end(1, 2, true)}, 1, "1-2 ", everything, Position{1, 1}},
		{"runs one between the other", Viewer{last: Position{1, 1}}, []*frame{f(3, 0), f(1, 2), f(3, 1)}, 3, "3-0 1-2 3-1 ", everything, Position{3, 1}},
		{"up to a hole", Viewer{}, []*frame{f(1, 0), gap, f(1, 5)}, 1, "1-0 ", more, Position{1, 0}},
		{"a hole", Viewer{last: Position{1, 0}}, []*frame{gap, f(1, 5)}, 0, "", atHole, Position{1, 0}},
		{"a hole that a snapshot makes good for", Viewer{lastSnapshot: told, last: Position{1, 8}}, []*frame{gap, f(1, 2)}, 2, "", everything, Position{1, 2}},
		{"a followed run, over", Viewer{follow: Follow{Run: 1}}, []*frame{f(2, 0), f(1, 0), end(1, 1, false), f(2, 1)}, 3, "1-0 1-1 ", over, Position{1, 1}},
		{"a followed run's end that a snapshot told", Viewer{follow: Follow{Run: 1}, lastSnapshot: told, last: Position{1, 9}}, []*frame{end(1, 9, false)}, 1, "1-9 ", over, Position{1, 9}},
		{"not all at once", Viewer{}, []*frame{big, f(1, 3)}, 1, string(big.data), more, Position{1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, got, what := tt.v.take(nil, tt.frames)
			if n != tt.n || string(got) != tt.want || what != tt.what || tt.v.last != tt.last {
				t.Errorf("take() = %d, %.40q, %d and last %s, want %d, %.40q, %d and %s", n, got, what, tt.v.last, tt.n, tt.want, tt.what, tt.last)
			}
		})
	}
}

// TestAnswerLoads checks that a tail is sent to all requests that it satisfies, and that the others
// keep waiting in order.
func TestAnswerLoads(t *testing.T) {
	t.Parallel()
	ask := func(number int64) wanted { return wanted{from: Position{1, number}, c: make(chan tail, 1)} }
	all := []wanted{ask(5), ask(3), ask(9), ask(5), ask(4)}
	top := &topic{loads: all}
	top.answerLoads(tail{from: Position{1, 5}, frames: []*frame{{pos: Position{1, 4}}, {pos: Position{1, 9}}}})
	for i, want := range []int{1, 0, 1, 1, 1} {
		if got := len(all[i].c); got != want {
			t.Errorf("the request for %s got %d answers, want %d", all[i].from, got, want)
		}
	}
	if len(top.loads) != 1 || top.loads[0].from != (Position{1, 3}) {
		t.Errorf("%v wait, want 1-3 alone", top.loads)
	}
	top.answerLoads(tail{err: ErrLost})
	if len(all[1].c) != 1 || len(top.loads) != 0 {
		t.Errorf("%d answers and %d waiting after an error, want it sent to all", len(all[1].c), len(top.loads))
	}
}

// TestAnswerLoadsByNeed checks that a tail that begins after the wanted event is only for viewers that
// know that event, and that these get no other.
func TestAnswerLoadsByNeed(t *testing.T) {
	t.Parallel()
	for _, read := range []need{needKept, needEvent, needLater} {
		top := &topic{}
		for _, n := range []need{needKept, needEvent, needLater} {
			top.loads = append(top.loads, wanted{from: Position{1, 5}, need: n, c: make(chan tail, 1)})
		}
		all := top.loads
		top.answerLoads(tail{from: Position{1, 5}, need: read, frames: []*frame{{pos: Position{1, 6}}}})
		for _, w := range all {
			if got, want := len(w.c) == 1, (w.need == needLater) == (read == needLater); got != want {
				t.Errorf("a tail for need %d answers a request with need %d: %t, want %t", read, w.need, got, want)
			}
		}
	}
}

// TestConnectionsAreChecked checks that connections are checked even if there are always frames to
// write.
func TestConnectionsAreChecked(t *testing.T) {
	t.Parallel()
	f := New(Config{})
	s := f.shards[0]
	top := &topic{shard: s}
	busy, calm := &group{topic: top, shard: s}, &group{topic: top, shard: s, isCheckQueued: true}
	s.checks = []*group{calm}
	for range 2 * share {
		s.queue = append(s.queue, busy, busy)
		s.serveNext()
	}
	if calm.isCheckQueued {
		t.Errorf("a group was not checked in %d turns", 2*share)
	}
	if len(s.queue)-s.queued != 2*share+1 {
		t.Errorf("%d turns are left, want %d", len(s.queue)-s.queued, 2*share+1)
	}
}

// TestInterrupt checks that a write that begins after the interruption ends too.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	c := &Conn{nc: near, timeout: time.Hour}
	c.interrupt()
	if err := c.write([]byte("x")); !errors.Is(err, errInterrupted) {
		t.Errorf("write() = %v, want errInterrupted", err)
	}
	c.close(false)
}

func TestSeal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		c    *Conn
		data string
		last bool
		want string
	}{
		{"chunk", &Conn{chunked: true}, "0123456789abcdefg", false, "11\r\n0123456789abcdefg\r\n"},
		{"last chunk", &Conn{chunked: true}, "abc", true, "3\r\nabc\r\n0\r\n\r\n"},
		{"nothing", &Conn{chunked: true}, "", false, ""},
		{"the end alone", &Conn{chunked: true}, "", true, "0\r\n\r\n"},
		{"with the head", &Conn{chunked: true, head: []byte("HEAD\r\n\r\n")}, "abc", false, "HEAD\r\n\r\n3\r\nabc\r\n"},
		{"as it is", &Conn{}, "abc", true, "abc"},
		{"as it is, with the head", &Conn{head: []byte("HEAD\r\n\r\n")}, "abc", false, "HEAD\r\n\r\nabc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			buf := append(make([]byte, room), tt.data...)
			if got := string(tt.c.seal(buf, tt.last)); got != tt.want {
				t.Errorf("seal(%q) = %q, want %q", tt.data, got, tt.want)
			}
			if got := string(tt.c.seal(make([]byte, room), false)); strings.Contains(got, "HEAD") {
				t.Errorf("the head was sent twice: %q", got)
			}
		})
	}
}
