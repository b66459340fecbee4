package feed_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/sse"

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

// cpu returns the processor time that the process has used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
