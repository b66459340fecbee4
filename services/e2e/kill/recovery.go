package kill

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"signalbox.dev/services/e2e/world"
)

// death is a kill of a part.
type death struct {
	part string
	at   time.Time
	runs map[string]bool // the runs that a runner had claimed, until their next event
	// lasting is set if what was broken stays so until the next death, such as a Deployment that
	// restarts: then pauses that begin later count, too.
	lasting bool
}

// pauses measures the pauses that kills cause for viewers.
type pauses struct {
	mu     sync.Mutex // guards the rest
	deaths []*death   // in order
	// noticed pauses by the part that was killed first in them.
	by map[string][]time.Duration
	// longest has the keepLongest longest ones.
	longest []Pause
	// exact are the pauses of the runs that a killed runner had claimed.
	exact []time.Duration
}

const keepLongest = 20

// Pause is a time in which a witness saw no event of a run.
type Pause struct {
	Part     string        `json:"part"` // that was killed first
	Length   time.Duration `json:"length_ns"`
	Session  string        `json:"session"`
	Run      string        `json:"run"`
	From, To time.Time     // of the events before and after it
	Next     string        `json:"next"`  // the kind of the event after it
	Kills    []string      `json:"kills"` // all from the first one on
}

func newPauses() *pauses { return &pauses{by: map[string][]time.Duration{}} }

func (p *pauses) died(d *death) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaths = append(p.deaths, d)
}

// owned records the runs of a part that has just been killed.
func (p *pauses) owned(d *death, runs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.runs = map[string]bool{}
	for _, r := range runs {
		d.runs[r] = true
	}
}

// wake is how long after a kill events in transit may still arrive.
const wake = 200 * time.Millisecond

// add counts the pause of a witness before an event: from the first kill in it, or just before it,
// to its end; all of it while a part is broken. It returns its length, zero if it is negligible.
func (p *pauses) add(gap Pause) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addExact(gap)
	i, _ := slices.BinarySearchFunc(p.deaths, gap.From.Add(-wake), func(d *death, t time.Time) int { return d.at.Compare(t) })
	broken := i > 0 && p.deaths[i-1].lasting
	if broken {
		i--
	}
	if i == len(p.deaths) {
		return 0
	}
	if gap.Part, gap.Length = p.deaths[i].part, gap.To.Sub(p.deaths[i].at); broken {
		gap.Length = gap.To.Sub(gap.From)
	}
	if min(gap.Length, gap.To.Sub(gap.From)) < noticed {
		return 0
	}
	for _, d := range p.deaths[i:] {
		if d.at.Before(gap.To) {
			gap.Kills = append(gap.Kills, fmt.Sprintf("%s at %s", d.part, at(d.at)))
		}
	}
	name := world.KindOf(gap.Part)
	p.by[name] = append(p.by[name], gap.Length)
	p.longest = append(p.longest, gap)
	slices.SortFunc(p.longest, func(a, b Pause) int { return cmp.Compare(b.Length, a.Length) })
	p.longest = p.longest[:min(len(p.longest), keepLongest)]
	return gap.Length
}

// addExact counts the first event of a run after its runner was killed; p.mu is held.
func (p *pauses) addExact(gap Pause) {
	for _, d := range slices.Backward(p.deaths) {
		if !d.runs[gap.Run] {
			continue
		}
		if after := gap.To.Sub(d.at); after > wake || after > 0 && gap.Next == "run-start" {
			p.exact = append(p.exact, after)
			delete(d.runs, gap.Run)
		}
		return
	}
}

// recent lists the parts that were killed in a time before now.
func (p *pauses) recent(before time.Time, window time.Duration) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, d := range slices.Backward(p.deaths) {
		if before.Sub(d.at) > window {
			break
		}
		if !d.at.After(before) {
			out = append(out, d.part)
		}
	}
	return out
}

// quantiles are the quantiles of a list of durations.
type quantiles struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

func quantilesOf(all []time.Duration) quantiles {
	if len(all) == 0 {
		return quantiles{}
	}
	s := slices.Sorted(slices.Values(all))
	at := func(q float64) time.Duration { return s[min(len(s)-1, int(q*float64(len(s))))] }
	return quantiles{N: len(s), P50: at(0.5), P99: at(0.99), Max: s[len(s)-1]}
}
