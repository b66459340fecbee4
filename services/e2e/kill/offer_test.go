package kill

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestOfferFollowsTheLoad checks that permits come at the rate of the current load.
func TestOfferFollowsTheLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		loads := make(chan Load)
		h := &harness{cfg: Config{Rate: 0.5, Loads: loads}, tokens: make(chan struct{}), report: newReport(Config{})}
		go h.offer(ctx)
		taken := func() (n int) {
			for end := time.After(10 * time.Second); ; {
				select {
				case <-h.tokens:
					n++
				case <-end:
					return n
				}
			}
		}
		for _, step := range []struct {
			change *Load
			least  int
			most   int
		}{{nil, 4, 5}, {&Load{Rate: 5, Wait: 0.7}, 49, 50}, {&Load{Rate: 0.5}, 4, 5}} {
			if step.change != nil {
				loads <- *step.change
			}
			if got := taken(); got < step.least || got > step.most {
				t.Errorf("%d runs permitted in ten seconds of load %+v, want %d", got, h.load, step.most)
			}
		}
		if h.report.Rate != 5 {
			t.Errorf("the report has the rate %g, want the highest, 5", h.report.Rate)
		}
		cancel()
		synctest.Wait()
	})
}
