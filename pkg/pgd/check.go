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
	made, err := inspect(dir)
	if err != nil {
		return "", err
	}
	bins, err := find(ctx, cfg, made, dir)
	if err != nil {
		return "", err
	}
	around := filepath.Dir(dir)
	for _, err := os.Stat(around); err != nil && around != filepath.Dir(around); _, err = os.Stat(around) {
		around = filepath.Dir(around)
	}
	as, err := chooseUser(ctx, bins.dir, around)
	if err != nil {
		return "", err
	}
	if as.uid != os.Geteuid() {
		return fmt.Sprintf("PostgreSQL %d in %s, as uid %d", bins.major, bins.dir, as.uid), nil
	}
	return fmt.Sprintf("PostgreSQL %d in %s", bins.major, bins.dir), nil
}
