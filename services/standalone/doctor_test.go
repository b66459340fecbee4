package standalone_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
