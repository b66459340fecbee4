package simulator_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"signalbox.dev/services/simulator"
)

var (
	update = flag.Bool("update", false, "rewrite the golden files")
	ids    = regexp.MustCompile(`(?:msg_01|toolu_01|req_01|chatcmpl-|call_|gen-\d+-)[1-9A-Za-z]{22}`)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a simulator on a real socket, with a client of its own.
type server struct {
	*simulator.Simulator
	URL    string
	client *http.Client
}

// start serves a simulator with the scripts that are given as name, source pairs.
func start(t testing.TB, cfg simulator.Config, scripts ...string) *server {
	t.Helper()
	sim, err := simulator.New(cfg, simulator.Deps{Now: func() time.Time { return time.Unix(1790000000, 0).UTC() }})
	if err != nil {
		t.Fatalf("New(%+v) failed: %v", cfg, err)
	}
	for i := 0; i+1 < len(scripts); i += 2 {
		if err := sim.PutScript(scripts[i], scripts[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewServer(sim)
	s := &server{Simulator: sim, URL: srv.URL, client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		sim.Close()
		srv.Close()
	})
	return s
}

// provider is where and how a dialect is spoken.
type provider struct {
	name   string
	path   string
	header map[string]string
}

func providers() []provider {
	bearer := map[string]string{"Authorization": "Bearer key"}
	return []provider{
		{"anthropic", "/anthropic/v1/messages", map[string]string{"X-Api-Key": "key", "Anthropic-Version": "2023-06-01"}},
		{"openai", "/openai/v1/chat/completions", bearer},
		{"openrouter", "/openrouter/api/v1/chat/completions", bearer},
	}
}

func (s *server) post(ctx context.Context, t testing.TB, p provider, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+p.path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range p.header {
		req.Header.Set(k, v)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", p.path, err)
	}
	return resp
}

// ask posts a body and reads the whole answer.
func (s *server) ask(t testing.TB, p provider, body string) (status int, h http.Header, answer string) {
	t.Helper()
	resp := s.post(t.Context(), t, p, body)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer of %s: %v", p.path, err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// request is the body of a request with one user message.
func request(p provider, model, text string, stream bool) string {
	b := `{"model":"` + model + `","messages":[{"role":"user","content":"` + text + `"}]`
	if p.name == "anthropic" {
		b += `,"max_tokens":4000`
	}
	if stream {
		b += `,"stream":true`
		if p.name == "openai" {
			b += `,"stream_options":{"include_usage":true}`
		}
	}
	return b + `}`
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update)", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs (-want +got):\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

func get(t testing.TB, s *server, path string, header map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
