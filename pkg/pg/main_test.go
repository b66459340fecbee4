package pg_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines that a closed DB leaves behind. The server of
// pgtest lives as long as the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"))
}
