package pool_test

import (
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// Every strategy is valid, chooses an account and says what it does; the first is the
// default, and the names are what somebody who mistypes one is told.
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
