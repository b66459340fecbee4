package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// plan says how much is asked.
type plan struct {
	Rounds   int           `json:"rounds"`
	Requests int           `json:"requests"`
	Streams  int           `json:"streams"`
	Chunks   int           `json:"chunks"`
	Pace     time.Duration `json:"pace_ns"`
	Flood    int           `json:"flood_chunks"`
	Body     int           `json:"body_bytes"`
	Procs    int           `json:"procs"`
}

func (p *plan) check() error {
	if p.Rounds < 1 || p.Requests < 1 || p.Streams < 1 || p.Chunks < 1 || p.Flood < 1 || p.Body < 0 || p.Pace < 0 || p.Procs < 0 {
		return errors.New("rounds, requests, streams, chunks and flood must be 1 or more, pace, body and procs not negative")
	}
	if p.Streams > 1000 || p.Chunks > maxChunks || p.Flood > maxChunks || p.Body > 16<<20 {
		return fmt.Errorf("at most 1000 streams, %d chunks and 16 MiB of body", maxChunks)
	}
	return nil
}

// round is what one way did in one round.
type round struct {
	first  [calls][]time.Duration // one request at a time: time to the first chunk
	busy   []time.Duration        // the same while the other streams go on
	delays []time.Duration        // of each chunk at a model's pace
	cpu    time.Duration          // of the process in between, at a model's pace
	flood  float64                // chunks per second as fast as they come
	burn   time.Duration          // of the process in between, as fast as they come
}

// measure runs the plan over all ways.
func measure(ctx context.Context, p plan, in *world) (*report, error) {
	ways := in.all
	if err := warm(ctx, p, ways); err != nil {
		return nil, err
	}
	before, err := in.busy()
	if err != nil {
		return nil, err
	}
	rounds := make(map[*way][]round, len(ways))
	for i := range p.Rounds {
		this := make(map[*way]*round, len(ways))
		for _, w := range ways {
			this[w] = &round{}
		}
		if err := p.single(ctx, turn(ways, i), this); err != nil {
			return nil, err
		}
		for _, w := range turn(ways, i) {
			if err := p.paced(ctx, w, this[w]); err != nil {
				return nil, err
			}
		}
		for _, w := range turn(ways, i) {
			if err := p.flood(ctx, w, this[w]); err != nil {
				return nil, err
			}
		}
		for _, w := range ways {
			rounds[w] = append(rounds[w], *this[w])
		}
	}
	after, err := in.busy()
	if err != nil {
		return nil, err
	}
	r, err := p.report(ways, rounds)
	if err != nil {
		return nil, err
	}
	r.Others = after.others(before)
	return r, nil
}

// turn returns the ways beginning with another each time.
func turn(ways []*way, i int) []*way {
	i %= len(ways)
	return slices.Concat(ways[i:], ways[:i])
}

// warm has every way opened its connections and grown its buffers.
func warm(ctx context.Context, p plan, ways []*way) error {
	for _, w := range ways {
		if _, _, err := p.load(ctx, w, p.Streams, 20, 0, false); err != nil {
			return err
		}
	}
	return nil
}

// inRow is how many requests a way gets before it is the next one's turn: as many
// as it takes for processors and schedulers to get used to it, as they are to what
// runs all day.
const inRow = 20

// single asks one after the other, some over each way in its turn.
func (p *plan) single(ctx context.Context, ways []*way, to map[*way]*round) error {
	body := request(model(1, 0), p.Body)
	c := newCaller(p.Requests * len(ways))
	for i := 0; i < p.Requests; i += inRow {
		for _, w := range turn(ways, i/inRow) {
			for k := range calls {
				taken := &to[w].first[k]
				c.firsts = *taken
				for range min(inRow, p.Requests-i) {
					if err := c.stream(ctx, w, k, body, 1); err != nil {
						return err
					}
				}
				*taken = c.firsts
			}
		}
	}
	return nil
}

// paced is a model's pace.
func (p *plan) paced(ctx context.Context, w *way, to *round) error {
	before, err := cpu(w.pid)
	if err != nil {
		return err
	}
	callers, _, err := p.load(ctx, w, p.Streams, p.Chunks, p.Pace, true)
	if err != nil {
		return err
	}
	after, err := cpu(w.pid)
	if err != nil {
		return err
	}
	to.cpu = after - before
	for _, c := range callers {
		to.busy = append(to.busy, c.firsts...)
		// The first chunk comes with the answer's headers: it is counted above.
		to.delays = append(to.delays, c.delays[1:]...)
	}
	return nil
}

// flood is as fast as it goes.
func (p *plan) flood(ctx context.Context, w *way, to *round) error {
	before, err := cpu(w.pid)
	if err != nil {
		return err
	}
	_, took, err := p.load(ctx, w, p.Streams, p.Flood, 0, false)
	if err != nil {
		return err
	}
	after, err := cpu(w.pid)
	if err != nil {
		return err
	}
	to.burn = after - before
	to.flood = float64(p.Streams*p.Flood) / took.Seconds()
	return nil
}

// opening is the time over which streams begin that shall not go in step.
const opening = 317 * time.Millisecond

// load opens streams at once and reads them all to their ends. When spread, they
// begin one after the other, so that their chunks do not come in step.
func (p *plan) load(ctx context.Context, w *way, streams, chunks int, pace time.Duration, spread bool) ([]*caller, time.Duration, error) {
	body := request(model(chunks, pace), p.Body)
	callers := make([]*caller, streams)
	errs := make([]error, streams)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		callers[i] = newCaller(chunks)
		if spread {
			late := time.NewTimer(time.Until(began.Add(time.Duration(i) * opening / time.Duration(streams))))
			select {
			case <-late.C:
			case <-ctx.Done():
			}
			late.Stop()
		}
		wg.Go(func() { errs[i] = callers[i].stream(ctx, w, newRun, body, chunks) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	for _, err := range errs {
		if err != nil {
			return nil, 0, err
		}
	}
	return callers, time.Since(began), nil
}
