package pool_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// shapes are conditions of a pool.
var shapes = []struct {
	name string
	make func(*crowd)
}{
	{"a tenth parked", func(c *crowd) {
		for i := 0; i < len(c.ids); i += 10 {
			c.park(i, "", 6*time.Hour)
		}
	}},
	{"another family limited", func(c *crowd) {
		for i := range c.ids {
			c.park(i, "haiku", 6*time.Hour)
		}
	}},
	{"half passed over", func(c *crowd) {
		for i := 0; i < len(c.ids); i += 2 {
			k := c.pick(i, "")
			c.pool.Report(c.now, k, pool.Outcome{Reason: pool.Unreachable, Unsent: true, Later: 5 * time.Minute})
		}
	}},
	{"all cooled down", func(c *crowd) {
		for i := range c.ids {
			c.park(i, "", time.Second)
		}
		c.now = c.now.Add(2 * time.Second)
	}},
	{"none ready", func(c *crowd) {
		for i := range c.ids {
			c.park(i, "", 6*time.Hour)
		}
	}},
}

// crowd is a pool with many accounts.
type crowd struct {
	tb   testing.TB
	pool *pool.Pool
	ids  []id.Account
	now  time.Time
}

func newCrowd(tb testing.TB, s pool.Strategy, n int) *crowd {
	settings := pool.Defaults()
	settings.Strategy = s
	c := &crowd{tb, pool.NewPool(start, settings), accounts(n), start}
	c.pool.SetMembers(start, start, pool.Bare(c.ids))
	return c
}

// pick picks the i-th account.
func (c *crowd) pick(i int, family string) pool.Ticket {
	k, err := c.pool.Pick(c.now, pool.Query{Family: family, Tried: slices.Concat(c.ids[:i], c.ids[i+1:])})
	if err != nil {
		c.tb.Fatal(err)
	}
	return k
}

func (c *crowd) park(i int, family string, wait time.Duration) {
	c.pool.Report(c.now, c.pick(i, family), pool.Outcome{Reason: limited, RetryAfter: wait})
}

// BenchmarkPick chooses an account every 10 µs of the pool's time.
func BenchmarkPick(b *testing.B) {
	for _, shape := range shapes {
		for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid} {
			for _, n := range []int{100, 1000} {
				b.Run(fmt.Sprintf("%s/%s/%d", shape.name, s, n), func(b *testing.B) {
					c := newCrowd(b, s, n)
					shape.make(c)
					r := pool.Query{Family: "opus", Model: "opus-1", Session: id.New[id.Session]()}
					b.ReportAllocs()
					for b.Loop() {
						c.now = c.now.Add(10 * time.Microsecond)
						k, err := c.pool.Pick(c.now, r)
						if err == nil && k.Probe {
							c.pool.Report(c.now, k, pool.Outcome{Reason: pool.Cancelled})
						}
					}
				})
			}
		}
	}
}

// BenchmarkRequest chooses an account and reports success.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := newCrowd(b, pool.Hybrid, n)
			r := pool.Query{Session: id.New[id.Session]()}
			b.ReportAllocs()
			for b.Loop() {
				c.now = c.now.Add(time.Millisecond)
				k, err := c.pool.Pick(c.now, r)
				if err != nil {
					b.Fatal(err)
				}
				c.pool.Report(c.now, k, pool.Outcome{Reason: pool.OK})
			}
		})
	}
}
