package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// previousVariable names the commit to use as the previous one. The default is the parent of
// this one.
const previousVariable = "SIGNALBOX_E2E_PREVIOUS"

func previousCommit() string { return cmp.Or(os.Getenv(previousVariable), "HEAD~1") }

// TestTwoVersions runs the stories in a cluster whose first replicas are from the previous
// commit, as halfway through a deployment. Each replica calls the other version of its peers,
// and the schema is the newer one.
func TestTwoVersions(t *testing.T) {
	t.Parallel()
	if _, err := git(t.Context(), "rev-parse", "--verify", "--quiet", previousCommit()+"^{commit}"); err != nil {
		t.Skip("the history lacks the previous commit: git fetch --deepen=1")
	}
	runStories(t, mixed.up(t))
}

// mixed is made of two versions.
var mixed = &sharedWorld{name: "mixed", start: startMixed}

func startMixed(ctx context.Context, o world.Options) (*world.World, error) {
	previous := filepath.Join(o.Dir, "previous")
	if err := buildPrevious(ctx, previous); err != nil {
		return nil, err
	}
	o.Program = func(service string, replica int) string {
		path := filepath.Join(previous, service)
		if _, err := os.Stat(path); err != nil || replica != 1 || !slices.Contains(world.Services(), service) {
			return "" // the previous commit may lack it
		}
		return path
	}
	return world.Start(ctx, o)
}

// buildPrevious puts the services of the previous commit into a folder.
func buildPrevious(ctx context.Context, dir string) error {
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	archive, err := git(ctx, "archive", previousCommit())
	if err != nil {
		return err
	}
	unpack := exec.CommandContext(ctx, "tar", "-x", "-C", source)
	unpack.Stdin = bytes.NewReader(archive)
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack the previous commit: %w\n%s", err, out)
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", dir + string(filepath.Separator)}
	for _, service := range world.Services() {
		args = append(args, "./services/"+service+"/cmd/"+service)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Dir = source
	build.Env = append(os.Environ(), "GOWORK=") // the previous commit's own
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the previous commit: %w\n%s", err, out)
	}
	return nil
}

func git(ctx context.Context, args ...string) ([]byte, error) {
	root, err := world.Checkout()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
