package gateway_test

import (
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	otel.SetTextMapPropagator(propagation.TraceContext{}) // as telemetry.StartTracing does
	goleak.VerifyTestMain(m,
		// The tests' PostgreSQL lives as long as the process; see pgtest.
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
	)
}
