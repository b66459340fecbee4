package telemetry

import (
	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
)

// QueryTracer returns what traces queries, or nil when traces are off: a span for
// each query that is recorded nowhere still costs. Spans hold the SQL text, which
// has placeholders for values.
func (c Config) QueryTracer() pgx.QueryTracer {
	if c.OTLPEndpoint == "" {
		return nil
	}
	return otelpgx.NewTracer(otelpgx.WithDisableConnectionDetailsInAttributes())
}
