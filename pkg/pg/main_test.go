package pg_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines that a closed DB leaks. pgtest's server runs until the
// process ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"))
}
