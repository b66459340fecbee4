package pool_test

import (
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// Every strategy is valid, chooses an account and describes itself; the first is the default,
// and an unknown one is answered with all names.
func TestStrategies(t *testing.T) {
	t.Parallel()
	all := pool.Strategies()
	if got, want := pool.List(all), "sticky, round-robin or hybrid"; got != want {
		t.Errorf("List(Strategies()) = %q, want %q", got, want)
	}
	if all[0].Name != pool.Defaults().Strategy {
		t.Errorf("the first strategy is %s, the default is %s", all[0].Name, pool.Defaults().Strategy)
	}
	for _, r := range all {
		s := pool.Defaults()
		s.Strategy = r.Name
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
		if r.About == "" {
			t.Errorf("%s does not say what it does", r.Name)
		}
		if got := newPicker(t, 1, with(r.Name)).use(none, ok); got != "a" {
			t.Errorf("%s chose %q of a single account", r.Name, got)
		}
	}
	s := pool.Defaults()
	s.Strategy = "stiky"
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), pool.List(all)) {
		t.Errorf("Validate(%s) = %v, want one that names the strategies", s.Strategy, err)
	}
}
