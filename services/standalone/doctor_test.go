package standalone_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/standalone"
)

// The doctor reads the file with prices, as Up does.
func TestDoctorReadsPrices(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(file, []byte(`{"models": 7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]standalone.State{file: standalone.Problem, file + ".gone": standalone.Problem, "": standalone.OK} {
		checks := standalone.Doctor(t.Context(), standalone.Options{
			Data: t.TempDir(), HTTP: "127.0.0.1:0", Environ: []string{"MODEL_PRICES=" + path},
		})
		i := slices.IndexFunc(checks, func(c standalone.Check) bool { return c.Name == "settings" })
		if got := checks[i]; got.State != want || want == standalone.Problem && !strings.Contains(got.Found, "MODEL_PRICES") {
			t.Errorf("with MODEL_PRICES=%s the doctor says %+v, want %s", path, got, want)
		}
	}
}

// The doctor adds up the connections of separate programs.
func TestDoctorAddsUpConnections(t *testing.T) {
	t.Parallel()
	database := conf.Secret(pgtest.New(t).AdminURL)
	for _, tc := range []struct {
		replicas map[string]int
		state    standalone.State
		want     string
	}{
		{nil, standalone.OK, "open up to 82"},
		{map[string]int{"gateway": 1, "agent-runner": 2, "tool-executor": 1, "document-sync": 1, "credential-broker": 1}, standalone.OK, "open up to 58"},
		{map[string]int{"agent-runner": 5000}, standalone.Warning, "open up to 40000"},
		{map[string]int{"runner": 1}, standalone.Problem, `no service "runner"`},
		{map[string]int{"gateway": -1}, standalone.Problem, "want 0 to"},
	} {
		checks := standalone.Doctor(t.Context(), standalone.Options{
			Data: t.TempDir(), HTTP: "127.0.0.1:0", DatabaseURL: database, Replicas: tc.replicas, Environ: []string{"DATABASE_CONNS=7"},
		})
		i := slices.IndexFunc(checks, func(c standalone.Check) bool { return c.Name == "PostgreSQL" })
		if got := checks[i]; got.State != tc.state || !strings.Contains(got.Found, tc.want) {
			t.Errorf("with %v the doctor says %+v, want %s with %q", tc.replicas, got, tc.state, tc.want)
		}
	}
}
