package bus_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
)

// air delivers announcements to all replicas, unless it is broken.
type air struct {
	mu     sync.Mutex // guards what follows
	hears  []func(ctx context.Context, m *bus.Message)
	broken bool
}

func (a *air) Subscribe(_ string, fn func(ctx context.Context, m *bus.Message)) (*bus.Subscription, error) {
	a.hears = append(a.hears, fn)
	return nil, nil //nolint:nilnil // nobody uses it
}

func (a *air) Nudge(ctx context.Context, subj string, m proto.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return bus.ErrDisconnected
	}
	data, err := proto.Marshal(m)
	msg := &bus.Message{Subject: subj, Header: nats.Header{bus.SchemaHeader: {string(m.ProtoReflect().Descriptor().FullName())}}, Data: data}
	for _, hear := range a.hears {
		hear(ctx, msg)
	}
	return err
}

// One of many replicas does the rounds, at the interval of one. When it stops, another goes on within
// two intervals. Without announcements, each replica does its own.
func TestRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every, replicas = 250 * time.Millisecond, 20
		a := &air{}
		var mu sync.Mutex
		did := map[int]int{}
		last := time.Now()
		var longest time.Duration
		stops := make([]context.CancelFunc, replicas)
		var all sync.WaitGroup
		for i := range replicas {
			r, err := bus.NewRounds(a, bus.RoundsConfig{Subject: "s", Self: string(rune('a' + i)), Every: every})
			if err != nil {
				t.Fatal(err)
			}
			var ctx context.Context
			ctx, stops[i] = context.WithCancel(t.Context())
			all.Go(func() {
				for {
					select {
					case <-ctx.Done():
						return
					case <-r.Due():
					}
					r.Begin()
					mu.Lock()
					did[i]++
					longest, last = max(longest, time.Since(last)), time.Now()
					mu.Unlock()
					<-time.After(rand.N(every / 4)) // a round takes a while, and not always the same
					r.Done(ctx)
				}
			})
		}
		// rounds returns who has done rounds during a while, and all of them.
		rounds := func(d time.Duration) (who, n int) {
			mu.Lock()
			clear(did)
			mu.Unlock()
			<-time.After(d)
			mu.Lock()
			defer mu.Unlock()
			for i, m := range did {
				who, n = i, n+m
			}
			return who, n
		}
		const while = 40 * every
		rounds(while)
		leader, n := rounds(while)
		if n < 39 || n > 41 || len(did) != 1 {
			t.Errorf("%d replicas did %d rounds in %d intervals, want one that did all", len(did), n, 40)
		}
		stops[leader]()
		if _, n := rounds(while); n < 37 || longest > 2*every {
			t.Errorf("without the first replica, %d rounds were done in %d intervals, with a pause of %s", n, 40, longest)
		}
		a.mu.Lock()
		a.broken = true
		a.mu.Unlock()
		if _, n := rounds(while); n < 38*(replicas-1) {
			t.Errorf("%d rounds were done without announcements, want those of %d replicas", n, replicas-1)
		}
		for _, stop := range stops {
			stop()
		}
		all.Wait()
	})
}
