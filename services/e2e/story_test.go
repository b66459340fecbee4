package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

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

var ready = regexp.MustCompile(`(?s)(?:"read (http://\S+)/".*)?Ctrl-C stops it`)

// examplePage returns the address that `signalbox up` names; a cluster has none.
func examplePage(ctx context.Context, w *sharedWorld) (string, error) {
	log := filepath.Join(w.Dir, world.Standalone+".log")
	ctx, cancel := context.WithTimeout(ctx, world.Timeout)
	defer cancel()
	for {
		b, err := os.ReadFile(log)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if found := ready.FindSubmatch(b); found != nil || err != nil {
			return string(slices.Concat(found[1:]...)), err
		}
		select {
		case <-time.After(10 * time.Millisecond): // it listens before it says so
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func runStories(t *testing.T, w *sharedWorld) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			s := &stage{world: w, streams: map[string]*stream{}, people: map[string]world.Member{}}
			env.Values[stageKey{}] = s
			env.Defer(s.close)
			page, err := examplePage(t.Context(), w)
			env.Setenv("PAGE", page)
			return errors.Join(err, s.cast(env))
		},
		Cmds: commands,
		// page: there are pages for trying the browser, at $PAGE.
		Condition: func(name string) (bool, error) {
			if name != "page" {
				return false, fmt.Errorf("there is no condition %s", name)
			}
			address, err := examplePage(t.Context(), w)
			return address != "", err
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
