package feed

import (
	"testing"
	"time"
)

func TestGroupRests(t *testing.T) {
	t.Parallel()
	f := New(Config{})
	s, other := f.shards[0], &shard{}
	g := &group{topic: &topic{shard: s}, shard: s, viewers: []*Viewer{{}}}
	now := time.Now()

	g.rests = now.Add(time.Hour)
	g.enqueue(other, false)
	g.enqueue(other, false) // it is queued already
	queued, resting := s.waiting()
	if queued || resting <= 0 || resting > time.Hour {
		t.Fatalf("waiting() = %v, %s of a group that rests, want false and its rest", queued, resting)
	}
	g.enqueue(other, true)
	if queued, _ = s.waiting(); !queued {
		t.Error("a resting group is not checked")
	}
	if left := s.queueRested(g.rests); left != 0 || len(s.queue) != 1 || len(s.resting) != 0 {
		t.Errorf("queueRested = %s with %d queued and %d resting after its rest, want 0, 1 and 0", left, len(s.queue), len(s.resting))
	}
}

func TestRestIsBounded(t *testing.T) {
	t.Parallel()
	f := New(Config{})
	for viewers, want := range map[int]time.Duration{1: 300 * time.Microsecond, 10: 3 * time.Millisecond, 100_000: maxRest} {
		if got := f.cfg.rest(viewers); got != want {
			t.Errorf("rest(%d) = %s, want %s", viewers, got, want)
		}
	}
}
