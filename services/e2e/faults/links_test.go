package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/e2e/faultproxy"
	"signalbox.dev/services/e2e/world"
)

// trouble is a fault of a link for a while.
type trouble struct {
	name string
	last time.Duration
	// begin causes the fault; the returned function is called at the end, before the link is
	// repaired.
	begin func(t *testing.T, r *rig, link string)
}

var troubles = []trouble{
	{"2 s late", 6 * time.Second, func(t *testing.T, r *rig, link string) { r.set(t, link, faultproxy.Fault{Latency: 2 * time.Second}) }},
	{"reset", 4 * time.Second, resets},
	{"1 KB/s", 6 * time.Second, func(t *testing.T, r *rig, link string) { r.set(t, link, faultproxy.Fault{Rate: 1 << 10}) }},
	{"black hole", 7 * time.Second, func(t *testing.T, r *rig, link string) { r.set(t, link, faultproxy.Fault{BlackHole: true}) }},
}

// resets cuts all connections repeatedly.
func resets(t *testing.T, r *rig, link string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 4*time.Second)
	defer cancel()
	for {
		for _, p := range r.link(t, link) {
			p.Reset()
		}
		if !wait(ctx, 300*time.Millisecond) {
			return
		}
	}
}

// suffer causes a trouble under load and checks the invariants.
func (r *rig) suffer(t *testing.T, what string, trouble func()) summary {
	t.Helper()
	from := r.load.underWay()
	trouble()
	back, err := r.recovered()
	if err != nil {
		t.Error(err)
	}
	return r.check(t, what, from, back)
}

// check judges all tasks from the given one on.
func (r *rig) check(t *testing.T, what string, from int, back time.Duration) summary {
	t.Helper()
	tasks := r.load.finish(t, from)
	s := summarize(tasks)
	t.Logf("%-38s as before after %4.1f s; %s", what, back.Seconds(), s)
	for _, p := range append(s.problems, r.stored(tasks)...) {
		t.Error(p)
	}
	for _, k := range tasks {
		if len(k.problems) > 0 {
			r.explain(t, k)
		}
	}
	for _, p := range r.Procs() {
		if !p.Running() {
			t.Fatalf("%s has ended:\n%s", p.Name(), p.Tail(4000))
		}
	}
	return s
}

func (r *rig) cell(t *testing.T, link string, tr trouble) {
	t.Helper()
	s := r.suffer(t, link+", "+tr.name, func() {
		timer := time.After(tr.last)
		tr.begin(t, r, link)
		<-timer
		r.set(t, link, faultproxy.Fault{})
	})
	// A client with a good line to a gateway gets a response, even if it is an error.
	if s.hung > 0 && link != viewers {
		t.Errorf("%d requests got no response within %s", s.hung, requestTime)
	}
}

// half causes a trouble on one replica's line only: the others continue and take over.
func (r *rig) half(t *testing.T, link string, last time.Duration) {
	t.Helper()
	one := r.link(t, link)[0]
	r.suffer(t, "one of "+link+", black hole", func() {
		if err := one.Set(faultproxy.Fault{BlackHole: true}); err != nil {
			t.Fatal(err)
		}
		wait(t.Context(), last)
		if err := one.Set(faultproxy.Fault{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLinks combines every link with every trouble. The links are split over concurrent clusters.
//
//nolint:paralleltest // one trouble at a time: they share a cluster
func TestLinks(t *testing.T) {
	t.Parallel()
	needFull(t)
	for name, links := range map[string][]string{
		"services": {
			viewers, "gateway → agent-runner", "gateway → document-sync", "gateway → tool-executor", "agent-runner → tool-executor",
			"agent-runner → credential-broker", "tool-executor → document-sync", "credential-broker → simulator",
		},
		"bus":      {"gateway → nats", "agent-runner → nats", "tool-executor → nats", "document-sync → nats"},
		"database": {"gateway → postgres", "agent-runner → postgres", "tool-executor → postgres", "document-sync → postgres", "credential-broker → postgres"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, world.Options{})
			for _, link := range links {
				for _, tr := range troubles {
					t.Run(strings.ReplaceAll(link, " ", "")+"/"+tr.name, func(t *testing.T) { r.cell(t, link, tr) })
				}
			}
			for _, link := range halves[name] {
				t.Run("one of "+strings.ReplaceAll(link, " ", ""), func(t *testing.T) { r.half(t, link, 20*time.Second) })
			}
			r.once(t)
			r.settle(t, idle)
		})
	}
}

// halves are the links that are tested one line at a time, by cluster.
var halves = map[string][]string{
	"services": {"agent-runner → credential-broker", "tool-executor → document-sync"},
	"bus":      {"agent-runner → nats", "tool-executor → nats", "gateway → nats"},
	"database": {"agent-runner → postgres", "tool-executor → postgres", "document-sync → postgres"},
}

// once fails if a note was written twice.
func (r *rig) once(t *testing.T) {
	t.Helper()
	rows, err := r.db.Query(t.Context(), `select name, count(*) from documents.documents group by name having count(*) > 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s was written %d times", name, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}
