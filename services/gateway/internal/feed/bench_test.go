package feed_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/sse"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

// BenchmarkResume measures a viewer that resumes and gets the 200 events that it missed: from the
// ring, or from the record and the log. The record is in memory and the bus server in the process.
func BenchmarkResume(b *testing.B) {
	const missed = 200
	for name, frames := range map[string]int{"ring": 512, "record": 4} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, nil, func(c *feed.Config) { c.RingFrames, c.Silence, c.Idle = frames, time.Hour, time.Hour })
			w.rows.behind, w.rows.page = 20, 1000
			for i := range missed + 5 {
				w.say(fmt.Sprint("a few words of an answer ", i))
			}
			d := w.open(b, 10*time.Second, nil)
			run := func() {
				c := d.get(b, "?after=1-4")
				r := sse.NewReader(c.answer(), 1<<20)
				for range missed {
					if _, err := r.Next(); err != nil {
						b.Fatal(err)
					}
				}
				c.conn.Close()
			}
			run()
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				run()
			}
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkFanOut measures what one more viewer costs: the processor time of an event, from being
// published in bursts of 200 to the writes of all viewers, with the bus server in the process. Viewers
// get the stream of events, or fold them into AI SDK chunks. added/first is the share of an added
// viewer in the time of an event with one.
func BenchmarkFanOut(b *testing.B) {
	for _, d := range []struct {
		name   string
		follow func() feed.Follow
	}{
		{"plain", func() feed.Follow { return feed.Follow{} }},
		{"uistream", func() feed.Follow {
			return feed.Follow{Reader: &dialect.Reader{Fold: dialect.UIStream{Version: 7}, Session: true}}
		}},
	} {
		var first float64
		for _, viewers := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%s/viewers=%d", d.name, viewers), func(b *testing.B) {
				cost := fanOut(b, viewers, d.follow)
				b.ReportMetric(cost, "cpu-ns/event")
				if viewers == 1 {
					first = cost
				} else if added := (cost - first) / float64(viewers-1); first > 0 {
					b.ReportMetric(added, "cpu-ns/added-viewer")
					b.ReportMetric(added/first, "added/first")
				}
			})
		}
	}
}

// fanOut returns the processor time in ns of each event to a number of viewers.
func fanOut(b *testing.B, viewers int, follow func() feed.Follow) float64 {
	b.Helper()
	const perRound, words = 200, "a few words"
	w := newWorld(b, nil)
	sinks := make([]*countingSink, viewers)
	ctx, cancel := context.WithCancel(w.ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	for i := range sinks {
		v, err := w.feed.Open(w.ctx, w.session)
		if err != nil {
			b.Fatal(err)
		}
		v.Watch(follow())
		sinks[i] = &countingSink{word: []byte(words), left: perRound, round: perRound, all: make(chan struct{}, 1)}
		serving.Go(func() {
			defer v.Close()
			_ = v.Serve(ctx, sinks[i], nil)
		})
	}
	round := func() {
		for range perRound {
			e := &runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 1, Number: w.next, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: words}}}
			w.next++
			if _, err := w.writer.PublishAsync(b.Context(), w.subject, fmt.Sprintf("%s:%d", w.run, e.Number), e); err != nil {
				b.Fatal(err)
			}
		}
		for _, s := range sinks {
			<-s.all
		}
	}
	round()
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		round()
	}
	return float64((cpu(b) - before).Nanoseconds()) / float64(b.N) / perRound
}

// countingSink counts a word that each event has. After each round of them it says so.
type countingSink struct {
	word        []byte
	round, left int
	all         chan struct{}
}

func (s *countingSink) Write(p []byte) error {
	s.left -= bytes.Count(p, s.word)
	if s.left == 0 {
		s.left = s.round
		s.all <- struct{}{}
	}
	return nil
}

// cpu returns the processor time that the process has used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
