package pgd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Check describes the installation that Start would use. It runs its programs as Start would,
// and creates nothing. Errors say what to do.
func Check(ctx context.Context, cfg Config) (string, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return "", fmt.Errorf("data folder %s: %w", cfg.Dir, err)
	}
	version, err := inspect(dir)
	if err != nil {
		return "", err
	}
	bins, err := find(ctx, cfg, version, dir)
	if err != nil {
		return "", err
	}
	parent := filepath.Dir(dir)
	for _, err := os.Stat(parent); err != nil && parent != filepath.Dir(parent); _, err = os.Stat(parent) {
		parent = filepath.Dir(parent)
	}
	as, err := chooseUser(ctx, bins.dir, parent)
	if err != nil {
		return "", err
	}
	if as.uid != os.Geteuid() {
		return fmt.Sprintf("PostgreSQL %d in %s, as uid %d", bins.major, bins.dir, as.uid), nil
	}
	return fmt.Sprintf("PostgreSQL %d in %s", bins.major, bins.dir), nil
}
