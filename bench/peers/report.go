package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// figure is the median of the rounds, and the least and the greatest of them.
type figure struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func over(rounds []float64) figure {
	s := slices.Sorted(slices.Values(rounds))
	return figure{Median: middle(s), Least: s[0], Most: s[len(s)-1]}
}

func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// rank returns the value below which the given part of all lies, in microseconds.
func rank(all []time.Duration, part float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	return float64(s[min(int(part*float64(len(s))), len(s)-1)]) / float64(time.Microsecond)
}

// figures are one way's. What is added is against the straight way of the same
// round, for which it is zero.
type figures struct {
	Way       string `json:"way"`
	First     figure `json:"first_p50_us"` // time to the first chunk, one request at a time
	AddedP50  figure `json:"added_first_p50_us"`
	AddedP99  figure `json:"added_first_p99_us"`
	LaterP50  figure `json:"added_later_p50_us"`      // of a run that goes on
	FreshP50  figure `json:"added_fresh_p50_us"`      // of a new session
	BusyAdded figure `json:"added_first_busy_p50_us"` // while the other streams go on
	ChunkP50  figure `json:"added_chunk_p50_us"`
	ChunkP99  figure `json:"added_chunk_p99_us"`
	Stream    figure `json:"cpu_ms_per_stream"`
	Burn      figure `json:"cpu_us_per_chunk_flood"`
	Flood     figure `json:"chunks_per_second"`
	Resident  int64  `json:"rss_bytes"`
	Peak      int64  `json:"rss_peak_bytes"`
}

// report is what was found.
type report struct {
	Machine string `json:"machine"`
	Plan    plan   `json:"plan"`
	// Others is the part of the machine that other programs used meanwhile.
	Others float64   `json:"others"`
	Ways   []figures `json:"ways"`
	// Ratios are the egress's figure divided by the peer's, round by round.
	Ratios []ratio `json:"ratios"`
}

type ratio struct {
	What string `json:"what"`
	Peer string `json:"peer"`
	Got  figure `json:"got"`
	// Aim is the most that is wanted, or with Least the least; 0 for none.
	Aim   float64 `json:"aim"`
	Least bool    `json:"at_least,omitempty"`
}

// aims are what is wanted of the egress's figures divided by a peer's; 0 is told, and not
// asked for.
var aims = map[string]struct{ first, stream, flood float64 }{
	bifrostFull: {1. / 3, 1. / 4, 4},
	bare:        {1.3, 1.3, 1 / 1.3},
}

// numbers are a way's figures of each round.
type numbers struct {
	first, added50, added99, later, fresh, busy, chunk50, chunk99, stream, burn, flood []float64
}

func (p *plan) report(ways []*way, rounds map[*way][]round) (*report, error) {
	r := &report{Machine: fmt.Sprintf("%s/%s, %d CPUs, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version()), Plan: *p}
	base := rounds[ways[0]]
	all := map[string]numbers{}
	for _, w := range ways {
		n := p.numbers(rounds[w], base)
		all[w.name] = n
		f := figures{
			Way: w.name, First: over(n.first), AddedP50: over(n.added50), AddedP99: over(n.added99), LaterP50: over(n.later), FreshP50: over(n.fresh), BusyAdded: over(n.busy),
			ChunkP50: over(n.chunk50), ChunkP99: over(n.chunk99), Stream: over(n.stream), Burn: over(n.burn), Flood: over(n.flood),
		}
		var err error
		if f.Resident, f.Peak, err = resident(w.pid); err != nil {
			return nil, err
		}
		r.Ways = append(r.Ways, f)
	}
	ours := all[egress]
	for _, peer := range []string{bifrostFull, bifrostRaw, bare} {
		n := all[peer]
		aim := aims[peer]
		r.Ratios = append(r.Ratios,
			ratio{What: "added time to the first token, p50", Peer: peer, Got: quotient(ours.added50, n.added50), Aim: aim.first},
			ratio{What: "added time to the first token, p99", Peer: peer, Got: quotient(ours.added99, n.added99)},
			ratio{What: "the same of a run that goes on, p50", Peer: peer, Got: quotient(ours.later, n.later), Aim: aim.first},
			ratio{What: "CPU per stream", Peer: peer, Got: quotient(ours.stream, n.stream), Aim: aim.stream},
			ratio{What: "CPU per chunk, as fast as they come", Peer: peer, Got: quotient(ours.burn, n.burn)},
			ratio{What: "chunks per second, as fast as they come", Peer: peer, Got: quotient(ours.flood, n.flood), Aim: aim.flood, Least: true},
		)
	}
	return r, nil
}

func (p *plan) numbers(rounds, base []round) numbers {
	var n numbers
	for i, r := range rounds {
		b := base[i]
		n.first = append(n.first, rank(r.first[newRun], .5))
		n.added50 = append(n.added50, rank(r.first[newRun], .5)-rank(b.first[newRun], .5))
		n.added99 = append(n.added99, rank(r.first[newRun], .99)-rank(b.first[newRun], .99))
		n.later = append(n.later, rank(r.first[goesOn], .5)-rank(b.first[goesOn], .5))
		n.fresh = append(n.fresh, rank(r.first[newSession], .5)-rank(b.first[newSession], .5))
		n.busy = append(n.busy, rank(r.busy, .5)-rank(b.busy, .5))
		n.chunk50 = append(n.chunk50, rank(r.delays, .5)-rank(b.delays, .5))
		n.chunk99 = append(n.chunk99, rank(r.delays, .99)-rank(b.delays, .99))
		n.stream = append(n.stream, r.cpu.Seconds()*1000/float64(p.Streams))
		n.burn = append(n.burn, r.burn.Seconds()*1e6/float64(p.Streams*p.Flood))
		n.flood = append(n.flood, r.flood)
	}
	return n
}

// quotient leaves out rounds in which the peer's figure is too small to be seen, as a CPU
// time of less than a tick is.
func quotient(ours, peers []float64) figure {
	var q []float64
	for i := range ours {
		if peers[i] != 0 {
			q = append(q, ours[i]/peers[i])
		}
	}
	if len(q) == 0 {
		return figure{}
	}
	return over(q)
}

func (r *report) writeJSON(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r *report) writeTable(out io.Writer) error {
	p := r.Plan
	fmt.Fprintf(out, "%s. Medians of %d rounds (least–most). Other programs used %.0f %% of the machine.\n\n", r.Machine, p.Rounds, 100*r.Others)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\t")
	for _, f := range r.Ways {
		fmt.Fprintf(w, "%s\t", f.Way)
	}
	fmt.Fprintln(w)
	row := func(name, format string, get func(figures) figure) {
		fmt.Fprintf(w, "%s\t", name)
		for _, f := range r.Ways {
			v := get(f)
			fmt.Fprintf(w, format+" ("+format+"–"+format+")\t", v.Median, v.Least, v.Most)
		}
		fmt.Fprintln(w)
	}
	row("time to the first token, p50, µs", "%.0f", func(f figures) figure { return f.First })
	row("added, p50, µs", "%.0f", func(f figures) figure { return f.AddedP50 })
	row("added, p99, µs", "%.0f", func(f figures) figure { return f.AddedP99 })
	row("added in a run that goes on, p50, µs", "%.0f", func(f figures) figure { return f.LaterP50 })
	row("added in a new session, p50, µs", "%.0f", func(f figures) figure { return f.FreshP50 })
	row(fmt.Sprintf("added among %d streams, p50, µs", p.Streams), "%.0f", func(f figures) figure { return f.BusyAdded })
	row("added to a chunk, p50, µs", "%.0f", func(f figures) figure { return f.ChunkP50 })
	row("added to a chunk, p99, µs", "%.0f", func(f figures) figure { return f.ChunkP99 })
	row(fmt.Sprintf("CPU per stream of %d chunks, ms", p.Chunks), "%.2f", func(f figures) figure { return f.Stream })
	row("chunks/s as fast as they come", "%.0f", func(f figures) figure { return f.Flood })
	row("CPU per chunk then, µs", "%.1f", func(f figures) figure { return f.Burn })
	fmt.Fprint(w, "memory (RSS) after it, at most, MiB\t")
	for _, f := range r.Ways {
		fmt.Fprintf(w, "%d, %d\t", f.Resident>>20, f.Peak>>20)
	}
	fmt.Fprint(w, "\n\n")
	for _, q := range r.Ratios {
		fmt.Fprintf(w, "%s\tegress/%s\t%.2f (%.2f–%.2f)\t", q.What, q.Peer, q.Got.Median, q.Got.Least, q.Got.Most)
		if q.Aim > 0 {
			fmt.Fprintf(w, "aim %s %.2f\t", map[bool]string{false: "≤", true: "≥"}[q.Least], q.Aim)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
