package e2e_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
)

// collector is an OpenTelemetry collector that records the services and operations of each
// trace.
type collector struct {
	url    string
	server *httptest.Server

	mu      sync.Mutex // guards what follows
	traces  map[string]map[string]bool
	changed chan struct{}
}

func newCollector() *collector {
	c := &collector{traces: map[string]map[string]bool{}, changed: make(chan struct{})}
	c.server = httptest.NewServer(http.HandlerFunc(c.take))
	c.url = c.server.URL
	return c
}

const maxExport = 16 << 20

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	var req collectorv1.ExportTraceServiceRequest
	body, err := io.ReadAll(io.LimitReader(r.Body, maxExport))
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				id := string(span.GetTraceId())
				if c.traces[id] == nil {
					c.traces[id] = map[string]bool{}
				}
				c.traces[id][service] = true
				for _, a := range span.GetAttributes() {
					if k := a.GetKey(); k == "db.system" || k == "db.system.name" || k == "messaging.system" {
						c.traces[id][service+" "+a.GetValue().GetStringValue()] = true
					}
				}
			}
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// await waits until one trace has all of want. Otherwise it returns what the best one lacks.
func (c *collector) await(ctx context.Context, want []string) (missing []string) {
	for {
		c.mu.Lock()
		missing = want
		for _, got := range c.traces {
			if lacks := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return got[s] }); len(lacks) < len(missing) {
				missing = lacks
			}
		}
		changed := c.changed
		c.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return missing
		}
	}
}

// TestTrace checks that one trace follows a message through all services, the bus and Postgres.
func TestTrace(t *testing.T) {
	t.Parallel()
	w := cluster.up(t)
	p := w.person(t)
	p.call(http.MethodPost, "/api/sessions/"+p.session()+"/messages", map[string]any{"content": "create a document about tracing"}, nil)
	want := []string{
		subject.Gateway, subject.AgentRunner, subject.ToolExecutor, subject.DocumentSync, subject.CredentialBroker,
		subject.AgentRunner + " nats", subject.ToolExecutor + " nats",
		subject.AgentRunner + " postgresql", subject.ToolExecutor + " postgresql", subject.DocumentSync + " postgresql", subject.Gateway + " postgresql",
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if missing := w.traces.await(ctx, want); len(missing) > 0 {
		w.traces.mu.Lock()
		defer w.traces.mu.Unlock()
		var seen []string
		for _, got := range w.traces.traces {
			if len(got) > 4 {
				seen = append(seen, strings.Join(slices.Sorted(maps.Keys(got)), ", "))
			}
		}
		t.Errorf("no trace has %q; the larger ones have:\n%s", missing, strings.Join(seen, "\n"))
	}
}
