package e2e_test

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox.dev/services/e2e/world"
)

// Each story runs in both worlds.

func TestStandalone(t *testing.T) {
	t.Parallel()
	runStories(t, standalone.up(t))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	runStories(t, cluster.up(t))
}

func runStories(t *testing.T, w *sharedWorld) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			s := &stage{world: w, streams: map[string]*stream{}, people: map[string]world.Member{}}
			env.Values[stageKey{}] = s
			env.Defer(s.close)
			return s.cast(env)
		},
		Cmds:                commands,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
