package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"signalbox.dev/pkg/telemetry"
)

// traced returns a context in a trace with a fixed id.
func traced(t *testing.T) context.Context {
	t.Helper()
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0xab, 15: 1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.Config{LogFormat: "json", LogLevel: slog.LevelInfo}, "gateway")
	if err != nil {
		t.Fatal(err)
	}
	log.DebugContext(t.Context(), "too little")
	if out.Len() != 0 {
		t.Errorf("a line below the level was written: %s", out.String())
	}
	log.With("run", "r1").InfoContext(traced(t), "run ended", "steps", 2)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	for k, want := range map[string]any{"service": "gateway", "run": "r1", "steps": 2.0, "msg": "run ended", "level": "INFO", "trace_id": "ab000000000000000000000000000001"} {
		if line[k] != want {
			t.Errorf("line[%q] = %v, want %v in %s", k, line[k], want, out.String())
		}
	}
	out.Reset()
	log.WarnContext(t.Context(), "no trace")
	if strings.Contains(out.String(), "trace_id") {
		t.Errorf("a line outside a trace has a trace id: %s", out.String())
	}
}

func TestLoggerAsText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.Config{LogFormat: "text"}, "gateway")
	if err != nil {
		t.Fatal(err)
	}
	log.WithGroup("request").InfoContext(traced(t), "served", "status", 200)
	for _, want := range []string{"service=gateway", "request.status=200", "trace_id=ab000000000000000000000000000001"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("line %q lacks %s", out.String(), want)
		}
	}
}

func TestLoggerRefusesAFormat(t *testing.T) {
	t.Parallel()
	if _, err := telemetry.NewLogger(io.Discard, telemetry.Config{LogFormat: "xml"}, "gateway"); err == nil || !strings.Contains(err.Error(), "json or text") {
		t.Errorf("NewLogger(xml) = %v, want an error that names the formats", err)
	}
}

// TestTracing is a single test because it changes the process-wide tracer.
func TestTracing(t *testing.T) {
	propagator, provider := otel.GetTextMapPropagator(), otel.GetTracerProvider()
	t.Cleanup(func() {
		otel.SetTextMapPropagator(propagator)
		otel.SetTracerProvider(provider)
	})

	// Without a collector, contexts are propagated and nothing is exported.
	otel.SetTracerProvider(noop.NewTracerProvider())
	stop, err := telemetry.StartTracing(t.Context(), telemetry.Config{}, "gateway", "devel")
	if err != nil {
		t.Fatal(err)
	}
	header := propagation.HeaderCarrier{}
	otel.GetTextMapPropagator().Inject(traced(t), header)
	if got := header.Get("traceparent"); got != "00-ab000000000000000000000000000001-0100000000000000-01" {
		t.Errorf("traceparent = %q", got)
	}
	if err := stop(t.Context()); err != nil {
		t.Errorf("stop = %v", err)
	}

	for _, endpoint := range []string{"collector:4318", "grpc://collector", "http://", "::"} {
		if _, err := telemetry.StartTracing(t.Context(), telemetry.Config{OTLPEndpoint: endpoint}, "gateway", "devel"); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT") {
			t.Errorf("StartTracing(%q) = %v, want an error that names the variable", endpoint, err)
		}
	}

	if _, err := telemetry.StartTracing(t.Context(), telemetry.Config{OTLPEndpoint: "u:hunter2@collector:4318"}, "gateway", "devel"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("StartTracing with a password = %v, want an error without it", err)
	}
	for _, headers := range []string{"x-api-key:hunter2", "x-api-key=%zzhunter2", "a=b,hunter2", "hun ter2=x"} {
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
		_, err := telemetry.StartTracing(t.Context(), telemetry.Config{OTLPEndpoint: "http://192.0.2.1:1"}, "gateway", "devel")
		if err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_HEADERS") || strings.Contains(err.Error(), "ter2") {
			t.Errorf("StartTracing with the headers %q = %v, want an error without their values", headers, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=hunter%2C2, b=")

	// With a collector, the settings count, not the rest of the environment.
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://192.0.2.1:1")
	type export struct{ path, body string }
	exports := make(chan export, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		exports <- export{r.URL.Path, string(body)}
	}))
	defer collector.Close()
	stop, err = telemetry.StartTracing(t.Context(), telemetry.Config{OTLPEndpoint: collector.URL + "/otlp"}, "agent-runner", "v1")
	if err != nil {
		t.Fatal(err)
	}
	_, span := otel.Tracer("test").Start(t.Context(), "a step of a run")
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Fatalf("stop = %v", err)
	}
	got := <-exports
	if got.path != "/otlp/v1/traces" {
		t.Errorf("exported to %s, want /otlp/v1/traces", got.path)
	}
	for _, want := range []string{"agent-runner", "a step of a run", "service.instance.id"} {
		if !strings.Contains(got.body, want) {
			t.Errorf("the export lacks %q", want)
		}
	}
}
