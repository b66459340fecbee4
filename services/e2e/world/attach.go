package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Attached is the environment variable of a file with an Installation. With it, Start uses that
// installation instead of starting a cluster.
const Attached = "SIGNALBOX_E2E_ATTACHED"

// Installation describes a Signalbox that somebody else runs, such as Compose, with the
// development issuer and the simulator turned on.
type Installation struct {
	// Gateways are base URLs: of each replica, or of a load balancer.
	Gateways []string `json:"gateways"`
	// Simulator is the base URL of the simulated provider.
	Simulator string `json:"simulator"`
	// Database is an administrator's URL of the database.
	Database string `json:"database"`
	// Secret is the development issuer's (GATEWAY_DEV_SECRET).
	Secret string `json:"secret"`
}

// Attach returns a world of an installation and of those of its parts that may be killed. Close
// leaves them running. Procs returns none of them, and Bus connects to none.
func Attach(in Installation, parts ...Part) (*World, error) {
	if len(in.Gateways) == 0 || in.Database == "" || in.Secret == "" {
		return nil, errors.New("attach to an installation: it needs gateways, the database and the secret")
	}
	return &World{
		Gateways:  append(slices.Clone(in.Gateways), in.Gateways[0]), // a story names two
		Simulator: in.Simulator, Database: in.Database,
		TokenEnv: []string{"DATABASE_URL=" + in.Database, "GATEWAY_DEV_SECRET=" + in.Secret},
		HTTP:     newHTTPClient(),
		secret:   in.Secret, attached: parts,
	}, nil
}

// attach is Start for a file with an Installation.
func attach(file string, o Options) (*World, error) {
	var in Installation
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &in)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Attached, err)
	}
	w, err := Attach(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	w.Dir = o.Dir
	return w, nil
}

// Stories runs the stories of package e2e against the installation, with the programs in the
// checkout's folder bin, and returns how many there are. It writes the installation and what the
// tests print into files in dir.
func (in Installation) Stories(ctx context.Context, dir string) (int, error) {
	root, err := Checkout()
	if err != nil {
		return 0, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return 0, err
	}
	b, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	file, log := filepath.Join(dir, "attached.json"), filepath.Join(dir, "stories.log")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout", "10m", "-run", "^TestCluster$", "-v", "./services/e2e")
	cmd.Dir, cmd.Env = root, append(os.Environ(), Attached+"="+file, Built+"="+filepath.Join(root, "bin"))
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("--- PASS: TestCluster/viewers")) {
		err = errors.New("they did not run")
	}
	if err != nil {
		err = fmt.Errorf("stories: %w; see %s", err, log)
	}
	return bytes.Count(out, []byte("--- PASS: TestCluster/")), errors.Join(err, os.WriteFile(log, out, 0o600))
}
