package gateway_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The tests' PostgreSQL lives as long as the process; see pgtest.
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
	)
}
