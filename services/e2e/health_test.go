package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestImageHealth runs every program of the cluster with the arguments of the image's
// HEALTHCHECK, in the environment of the running one, as Docker does for
// `docker compose up --wait`.
func TestImageHealth(t *testing.T) {
	t.Parallel()
	w := cluster.up(t)
	check := imageHealth(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for _, p := range w.Procs() {
		if p.Service == world.NATSName { // compose runs the official NATS image
			continue
		}
		if err := p.Again(ctx, check...); err != nil {
			t.Errorf("the image of %s is unhealthy: %v", p.Service, err)
		}
	}
}

// imageHealth returns the arguments of the HEALTHCHECK in deploy/Dockerfile.
func imageHealth(t *testing.T) []string {
	t.Helper()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy/Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var command []string
	m := regexp.MustCompile(`(?m)^HEALTHCHECK .*CMD (\[.*\])$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("deploy/Dockerfile has no HEALTHCHECK")
	}
	if err := json.Unmarshal(m[1], &command); err != nil || len(command) < 2 || command[0] != "/service" {
		t.Fatalf("the HEALTHCHECK of deploy/Dockerfile is %s, %v: want /service with arguments", m[1], err)
	}
	return command[1:]
}
