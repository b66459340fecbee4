package e2e_test

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox.dev/services/e2e/world"
)

// Each story is told in both worlds.

func TestStandalone(t *testing.T) {
	t.Parallel()
	tell(t, standalone.up(t))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	tell(t, cluster.up(t))
}

func tell(t *testing.T, w *house) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			s := &stage{house: w, streams: map[string]*stream{}, people: map[string]world.Member{}}
			env.Values[stageKey{}] = s
			env.Defer(s.close)
			return s.cast(env)
		},
		Cmds:                commands,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
