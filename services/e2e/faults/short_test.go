package faults_test

import (
	"slices"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/world"
)

// TestFaults runs the most important troubles in a minute, for `make test`.
//
//nolint:paralleltest // one trouble at a time: they share a cluster
func TestFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() || full() {
		t.Skip("the other tests of this package include it")
	}
	r := newRig(t, world.Options{Durable: true})
	quick := func(name string) trouble {
		tr := troubles[slices.IndexFunc(troubles, func(tr trouble) bool { return tr.name == name })]
		tr.last = min(tr.last, 4*time.Second)
		return tr
	}
	for _, c := range []struct{ link, trouble string }{
		{"credential-broker → simulator", "reset"},
		{"gateway → nats", "1 KB/s"},
		{"agent-runner → postgres", "black hole"},
	} {
		t.Run(c.trouble, func(t *testing.T) { r.cell(t, c.link, quick(c.trouble)) })
	}
	t.Run("a stopped runner", func(t *testing.T) { r.freeze(t, r.Replica(subject.AgentRunner, 1), 10*time.Second) })
	t.Run("postgres killed", func(t *testing.T) { r.restart(t, r.Postgres, world.Part.Kill) })
	t.Run("nats wiped", r.wipe)
	r.roll(t, []string{subject.AgentRunner, subject.Gateway})
	r.once(t)
	r.settle(t, soon)
}
