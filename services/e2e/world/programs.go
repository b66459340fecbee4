package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Built is the environment variable of a folder with programs that `make` has just built from
// this checkout. Build builds those that are missing there, or all without the variable.
const Built = "SIGNALBOX_E2E_BIN"

// Build puts the programs of this checkout into a folder, and the NATS server that pkg/natsd
// embeds as a separate program.
func Build(ctx context.Context, dir string) error {
	root, err := Checkout()
	if err != nil {
		return err
	}
	mains, err := filepath.Glob(filepath.Join(root, "services/*/cmd/*"))
	if err != nil {
		return err
	}
	programs := map[string]string{"nats-server": "github.com/nats-io/nats-server/v2"}
	for _, m := range mains {
		programs[filepath.Base(m)] = m
	}
	var missing []string
	for name, source := range programs {
		built := filepath.Join(os.Getenv(Built), name)
		if _, err := os.Stat(built); os.Getenv(Built) == "" || err != nil {
			missing = append(missing, source)
			continue
		}
		if err := os.Symlink(built, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("take the program %s: %w", name, err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, missing...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, "services")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// Checkout returns the folder of this checkout: the one of go.work, at or above
// the working folder.
func Checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("there is no go.work here or above: run inside the checkout")
		}
		dir = filepath.Dir(dir)
	}
}
