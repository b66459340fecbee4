package kill

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// Report is the result of a run of the kill test.
type Report struct {
	Seed  uint64        `json:"seed"`
	Rate  float64       `json:"rate"`     // of the highest load
	Storm time.Duration `json:"storm_ns"` // from the first message to the last kill

	Kills   map[string]int `json:"kills"`   // by kind of part
	Borders map[border]int `json:"borders"` // of the kills at a border
	// EndedAlone lists programs that ended without a kill.
	EndedAlone map[string]int `json:"ended_alone"`

	Offered    int `json:"offered"`     // runs that a talker was free to start
	NotCarried int `json:"not_carried"` // runs for which no talker was free
	Messages   int `json:"messages"`    // sent until accepted
	Answered   int `json:"answered"`    // messages whose run was seen to end
	Retries    int `json:"retries"`
	// Failures counts repeated requests by their response.
	Failures map[string]int `json:"failures"`

	Sessions  int            `json:"sessions"`
	Runs      int            `json:"runs"`
	Ends      map[string]int `json:"ends"`    // of runs, by finish reason or error code
	Tools     map[string]int `json:"tools"`   // calls by their outcome
	Answers   map[string]int `json:"answers"` // of people, about calls
	Events    int            `json:"events"`
	Sights    int            `json:"sights"` // events that witnesses saw
	Resumes   int            `json:"resumes"`
	StepRetry int            `json:"step_retries"`
	// Snapshots that viewers got instead of events: Needed if no witness saw the events that it
	// covers, Spared if one did, so that the log had them.
	Snapshots struct {
		Needed int            `json:"needed"`
		Spared int            `json:"spared"`
		After  map[string]int `json:"after"` // by the part that was killed last
	} `json:"snapshots"`

	// Pauses are the pauses of at least 0.4 s between a kill and the next event of a run, seen by
	// witnesses who stay connected, by the part that was killed first. Runners are all pauses of
	// the runs that a killed runner had claimed.
	Pauses  map[string]quantiles `json:"pauses"`
	All     quantiles            `json:"all_pauses"`
	Runners quantiles            `json:"runner_pauses"`

	// FarEffectsTwice counts operations that took effect twice at the far end.
	FarEffectsTwice int `json:"far_effects_twice"`

	// Longest are the longest pauses.
	Longest []Pause `json:"longest"`

	Problems map[sort]int `json:"problems"`
	// First has the first problems of each sort.
	First []problem `json:"first"`
}

const keepProblems = 10 // of each sort

func newReport(cfg Config) Report {
	r := Report{
		Seed: cfg.Seed, Rate: cfg.Rate, Kills: map[string]int{}, Borders: map[border]int{}, Answers: map[string]int{}, EndedAlone: map[string]int{}, Failures: map[string]int{},
		Ends: map[string]int{}, Tools: map[string]int{}, Pauses: map[string]quantiles{}, Problems: map[sort]int{},
	}
	r.Snapshots.After = map[string]int{}
	return r
}

// OK reports whether there were no problems.
func (r *Report) OK() bool { return r.problems() == 0 }

func (r *Report) problems() int { return total(r.Problems) }
func (r *Report) kills() int    { return total(r.Kills) }

func total[K comparable](m map[K]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// finish computes the statistics of the pauses.
func (r *Report) finish(p *pauses) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []time.Duration
	for part, list := range p.by {
		r.Pauses[part] = quantilesOf(list)
		all = append(all, list...)
	}
	r.Longest = p.longest
	r.All, r.Runners = quantilesOf(all), quantilesOf(p.exact)
}

// Write prints the report as a table.
func (r *Report) Write(w io.Writer) {
	seconds := max(r.Storm.Seconds(), 1e-9)
	fmt.Fprintf(w, "\n%d kills in %.0f s: %s\n", r.kills(), seconds, counts(r.Kills))
	fmt.Fprintf(w, "of these at a border: %s\n", counts(r.Borders))
	fmt.Fprintf(w, "load: %d messages (%.1f/s) of %g/s wanted, %d without a free talker; %d requests repeated\n",
		r.Messages, float64(r.Messages)/seconds, r.Rate, r.NotCarried, r.Retries)
	fmt.Fprintf(w, "requests that failed: %s\n", counts(r.Failures))
	fmt.Fprintf(w, "programs that ended by themselves: %s\n", counts(r.EndedAlone))
	fmt.Fprintf(w, "seen: %d sessions, %d runs (%s), %d events, delivered %d times to viewers, which resumed %d times\n",
		r.Sessions, r.Runs, counts(r.Ends), r.Events, r.Sights, r.Resumes)
	fmt.Fprintf(w, "tool calls: %s; answers of people: %s; restarted steps: %d\n", counts(r.Tools), counts(r.Answers), r.StepRetry)
	fmt.Fprintf(w, "snapshots: %d for events lost from the log, %d for others; after a kill of %s\n", r.Snapshots.Needed, r.Snapshots.Spared, counts(r.Snapshots.After))
	fmt.Fprintf(w, "\n%-34s %6s %8s %8s %8s\n", "pause of a run, from the kill on", "n", "p50", "p99", "max")
	line := func(name string, q quantiles) {
		fmt.Fprintf(w, "%-34s %6d %7.2fs %7.2fs %7.2fs\n", name, q.N, q.P50.Seconds(), q.P99.Seconds(), q.Max.Seconds())
	}
	line("on the killed runner, all", r.Runners)
	line("0.4 s or longer, any part", r.All)
	for _, part := range slices.Sorted(maps.Keys(r.Pauses)) {
		line("  "+part, r.Pauses[part])
	}
	fmt.Fprintln(w)
	for _, p := range r.Longest {
		if p.Length > slow {
			fmt.Fprintf(w, "%.2fs until %s at %s, run %s of session %s: %s\n", p.Length.Seconds(), p.Next, at(p.To), p.Run, p.Session, strings.Join(p.Kills, ", "))
		}
	}
	fmt.Fprintln(w)
	for _, s := range sorts {
		fmt.Fprintf(w, "%-40s %d\n", s, r.Problems[s])
	}
	for _, p := range r.First {
		fmt.Fprintf(w, "\n%s, session %s: %.1000s\n", p.Sort, p.Session, p.What)
	}
}

// counts formats a map, sorted by key.
func counts[K ~string](m map[K]int) string {
	if len(m) == 0 {
		return "none"
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}

// judge checks a transcript and adds it to the report.
func (h *harness) judge(t *transcript) {
	problems := append(t.problems, t.check()...)
	h.mu.Lock()
	r := &h.report
	r.add(t)
	for _, s := range t.snapshots() {
		if s.spared {
			r.Snapshots.Spared++
		} else {
			r.Snapshots.Needed++
		}
		last := "nothing"
		if parts := h.pauses.recent(s.at, 10*time.Second); len(parts) > 0 {
			last = world.KindOf(parts[0])
		}
		r.Snapshots.After[last]++
	}
	for _, p := range problems {
		r.Problems[p.Sort]++
		if r.Problems[p.Sort] <= keepProblems {
			r.First = append(r.First, p)
		}
	}
	h.mu.Unlock()
	for _, p := range problems {
		h.say("PROBLEM %s, session %s: %.300s", p.Sort, p.Session, p.What)
	}
	if len(problems) > 0 || t.slowest > slow {
		if err := t.keep(h.cfg.Dir, problems); err != nil {
			h.fatal(err)
		}
	}
}

// add adds the counts of a transcript.
func (r *Report) add(t *transcript) {
	r.Sessions++
	r.Runs += len(t.runs)
	for _, run := range t.runs {
		switch {
		case run.Error != nil:
			r.Ends[run.State+" "+run.Error.Code]++
		case run.FinishReason != nil:
			r.Ends[*run.FinishReason]++
		default:
			r.Ends[run.State]++
		}
		for _, c := range run.ToolCalls {
			state := c.Phase
			if c.State != nil {
				state = *c.State
			}
			r.Tools[state]++
			if c.Approval != nil {
				r.Answers[deref(c.Approval.Decision)]++
			}
		}
	}
	r.Events += len(t.events)
	for _, e := range t.events {
		if e.kind == "step-retry" {
			r.StepRetry++
		}
	}
	for _, s := range t.views {
		r.Sights += len(s.sights)
		r.Resumes += s.resumed
	}
}
