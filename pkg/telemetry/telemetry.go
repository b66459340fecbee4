// Package telemetry sets up logs on stderr, and traces to an OTLP collector if one is
// configured. Services register their metrics with a prometheus.Registerer that they get.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Config configures logs and traces.
type Config struct {
	LogLevel  slog.Level `env:"LOG_LEVEL" envDefault:"info" doc:"Lowest level that is logged: debug, info, warn or error."`
	LogFormat string     `env:"LOG_FORMAT" envDefault:"json" doc:"Format of log lines: json or text."`
	// The exporter itself reads the other OTEL_EXPORTER_OTLP_ variables of the OpenTelemetry specification.
	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT" doc:"URL of an OpenTelemetry collector (OTLP over HTTP); empty turns traces off."`
}

// NewLogger returns the logger of a service.
func NewLogger(w io.Writer, cfg Config, service string) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel}
	var h slog.Handler
	switch cfg.LogFormat {
	case "json":
		h = slog.NewJSONHandler(w, opts)
	case "text":
		h = slog.NewTextHandler(w, opts)
	default:
		return nil, fmt.Errorf("LOG_FORMAT is %q: use json or text", cfg.LogFormat)
	}
	return slog.New(traceHandler{h}).With("service", service), nil
}

// StartTracing installs the process-wide tracer provider and the W3C propagator, and returns a
// function that flushes and stops it. Without an endpoint nothing is exported, and spans cost
// next to nothing, but trace contexts are still propagated.
func StartTracing(ctx context.Context, cfg Config, service, version string) (stop func(context.Context) error, err error) {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	if cfg.OTLPEndpoint == "" {
		return func(context.Context) error { return nil }, nil
	}
	collector, err := url.Parse(cfg.OTLPEndpoint)
	if err != nil || collector.Host == "" || (collector.Scheme != "http" && collector.Scheme != "https") {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT is not the URL of a collector: use one such as http://collector:4318") // without the URL, which may contain a password
	}
	if err := checkHeaders(); err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(collector.JoinPath("v1/traces").String()))
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", collector.Host, err)
	}
	host, _ := os.Hostname() // without a name the process id has to do
	provider := trace.NewTracerProvider(
		trace.WithBatcher(exporter),
		trace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", service),
			attribute.String("service.version", version),
			attribute.String("service.instance.id", fmt.Sprintf("%s/%d", host, os.Getpid())),
		)),
	)
	otel.SetTracerProvider(provider)
	return provider.Shutdown, nil
}

// headerName is a token of RFC 9110, 5.6.2.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// checkHeaders refuses headers for the collector that do not parse: the exporter would ignore
// them and print them, with their keys, to stderr.
func checkHeaders() error {
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for i, header := range strings.Split(os.Getenv(variable), ",") {
			if strings.TrimSpace(header) == "" {
				continue
			}
			name, value, ok := strings.Cut(header, "=")
			_, err := url.PathUnescape(value)
			if !ok || !headerName.MatchString(strings.TrimSpace(name)) || err != nil {
				return fmt.Errorf("%s: header %d is not of the form name=value: write %%25 for %%, and %%2C for a comma", variable, i+1)
			}
		}
	}
	return nil
}

// traceHandler adds the trace id to lines that are logged in a trace.
type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := oteltrace.SpanContextFromContext(ctx); sc.HasTraceID() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
