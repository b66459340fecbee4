package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestWatchReports checks what the numbers of pods during and after a flood say about autoscalers.
func TestWatchReports(t *testing.T) {
	t.Parallel()
	pods := func(runners, executors int) map[string]int {
		return map[string]int{"gateway": 2, "agent-runner": runners, "tool-executor": executors}
	}
	for name, tc := range map[string]struct {
		during, after []map[string]int
		want          []string
	}{
		"out and in": {[]map[string]int{pods(2, 2), pods(5, 3)}, []map[string]int{pods(4, 3), pods(3, 2), pods(2, 2)}, nil},
		"nothing":    {[]map[string]int{pods(2, 2), pods(2, 3)}, []map[string]int{pods(2, 2)}, []string{"agent-runner did not scale out"}},
		"too fast": {
			[]map[string]int{pods(2, 2), pods(5, 3)},
			[]map[string]int{pods(3, 2), pods(2, 2)},
			[]string{"2 pods of agent-runner left at once"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatch()
			w.begun = time.Now().Add(-time.Minute)
			see := w.see(func() bool { return twoEach(w.now) })
			for _, p := range tc.during {
				see(p)
			}
			w.ended, w.left = time.Now().Add(-time.Second), false
			for i, p := range tc.after {
				if got, last := see(p), i == len(tc.after)-1; got != last || !w.left {
					t.Errorf("after %v it is over: %t, want %t; pods left: %t", p, got, last, w.left)
				}
			}
			var r result
			w.report(&r)
			if diff := cmp.Diff(tc.want, r.Broken); diff != "" {
				t.Errorf("broken (-want +got):\n%s", diff)
			}
			for _, f := range r.Figures {
				if f.Name == "most pods of agent-runner" && f.Value != float64(tc.during[1]["agent-runner"]) {
					t.Errorf("%s: %g, want %d", f.Name, f.Value, tc.during[1]["agent-runner"])
				}
			}
		})
	}
}
