package httpserver_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/httpserver"
)

func TestCheckHealth(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	httpserver.Ops{}.Mount(mux)
	healthy := strings.TrimPrefix(serve(t, mux, time.Second).url, "http://")
	_, port, err := net.SplitHostPort(healthy)
	if err != nil {
		t.Fatal(err)
	}
	// Listen addresses of services.
	for _, addr := range []string{healthy, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		if err := httpserver.CheckHealth(t.Context(), addr, false); err != nil {
			t.Errorf("CheckHealth(%q) = %v", addr, err)
		}
	}

	sick := strings.TrimPrefix(serve(t, http.NotFoundHandler(), time.Second).url, "http://")
	if err := httpserver.CheckHealth(t.Context(), sick, false); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("CheckHealth of a server without the page = %v, want an error with its status", err)
	}
	for _, addr := range []string{"", "8080", "127.0.0.1:1"} {
		if err := httpserver.CheckHealth(t.Context(), addr, false); err == nil {
			t.Errorf("CheckHealth(%q) = nil, want an error", addr)
		}
	}
	hung := strings.TrimPrefix(serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), 0).url, "http://")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := httpserver.CheckHealth(ctx, hung, false); err == nil {
		t.Error("CheckHealth of a server that hangs = nil, want an error")
	}
}
