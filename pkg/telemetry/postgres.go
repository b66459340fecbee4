package telemetry

import (
	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
)

// QueryTracer returns a tracer of queries, or nil if traces are off, because even spans that
// are not recorded cost time. Spans contain the SQL text, which has placeholders for values.
func (c Config) QueryTracer() pgx.QueryTracer {
	if c.OTLPEndpoint == "" {
		return nil
	}
	return otelpgx.NewTracer(otelpgx.WithDisableConnectionDetailsInAttributes())
}
