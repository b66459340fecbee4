package kill

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keep writes the evidence about a session with problems or a long pause into the folder of the
// logs: requests, seen events by witness, and the stored state.
func (t *transcript) keep(dir string, problems []problem) error {
	name := "problem-"
	if len(problems) == 0 {
		name = "slow-"
	}
	f, err := os.Create(filepath.Join(dir, name+t.session+".txt"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	t.write(f, problems)
	return nil
}

const clockFormat = "15:04:05.000"

func (t *transcript) write(w io.Writer, problems []problem) {
	fmt.Fprintf(w, "session %s\n", t.session)
	for _, p := range problems {
		fmt.Fprintf(w, "%s: %s\n", p.Sort, p.What)
	}
	fmt.Fprintln(w, "\nasked:")
	for _, a := range t.asks {
		fmt.Fprintf(w, "%s … %s  %q %s as run %d %s\n", at(a.from), at(a.to), a.content(), a.mode, a.ordinal, a.run)
	}
	for _, s := range t.stops {
		fmt.Fprintf(w, "%s … %s  stopped\n", at(s.from), at(s.to))
	}
	for _, a := range t.answers {
		fmt.Fprintf(w, "%s … %s  answered %s, %+v\n", at(a.from), at(a.to), a.decision, *a)
	}
	fmt.Fprintln(w, "\nruns:")
	for _, id := range slices.Sorted(maps.Keys(t.runs)) {
		r := t.runs[id]
		fmt.Fprintf(w, "%d %s %s, %d steps, text %q, started %v, ended %v, error %+v\n", r.Ordinal, id, r.State, r.Steps, r.Text, r.StartedAt, r.EndedAt, r.Error)
		for _, c := range r.ToolCalls {
			fmt.Fprintf(w, "    step %d %s %s %s: %s %s %s\n", c.StepIndex, c.Tool, c.ID, c.Args, c.Phase, deref(c.State), deref(c.Result))
		}
	}
	fmt.Fprintln(w, "\nmessages:")
	for _, m := range t.messages {
		step := -1
		if m.StepIndex != nil {
			step = *m.StepIndex
		}
		fmt.Fprintf(w, "%s %s step %d %s\n", m.Role, deref(m.RunID), step, m.Content)
	}
	fmt.Fprintln(w, "\nevents, as they were seen first:")
	order := slices.SortedFunc(maps.Keys(t.events), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.number, b.number))
	})
	for _, p := range order {
		e := t.events[p]
		fmt.Fprintf(w, "%s  %-7s %-18s %s  (%s)\n", at(e.at), p, e.kind, e.data, e.by)
	}
	for _, s := range t.views {
		fmt.Fprintf(w, "\n%s, which resumed %d times:\n", s.name, s.resumed)
		for _, x := range s.sights {
			if x.snapshot {
				fmt.Fprintf(w, "\n%s a snapshot at %s in place of what is behind %s\n", at(x.at), x.place, x.cursor)
				continue
			}
			fmt.Fprintf(w, "%s@%s ", x.place, x.at.Format("05.000"))
		}
		fmt.Fprintln(w)
	}
	for _, d := range t.documents {
		fmt.Fprintf(w, "\ndocument %q:\n%s\n", d.name, d.content)
	}
}

func at(t time.Time) string { return t.UTC().Format(clockFormat) }

func deref(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}
