package llm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

const (
	claudeHead = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"m\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n"
	claudeTail = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	chatHead = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n"
	chatTail = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
)

// model is a client of either dialect.
type model interface {
	Stream(context.Context, *llm.Request) (*llm.Stream, error)
}

func claude(t *testing.T, cfg llm.Config) model {
	t.Helper()
	c, err := anthropic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func chat(t *testing.T, cfg llm.Config) model {
	t.Helper()
	c, err := openai.New(cfg, openai.Compatible)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serve starts a provider and returns how to reach it.
func serve(t *testing.T, h http.HandlerFunc) llm.Config {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return llm.Config{HTTP: srv.Client(), BaseURL: srv.URL + "/egress/x/"}
}

func hello() *llm.Request {
	return &llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: []byte(`"hi"`)}}, Meta: llm.Meta{Session: "s1"}}
}

// write sends a piece of a stream at once.
func write(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = io.WriteString(w, s)
	_ = http.NewResponseController(w).Flush()
}

func readAll(s *llm.Stream) error {
	for s.Next() {
	}
	return s.Err()
}

func TestStreamRequest(t *testing.T) {
	t.Parallel()
	type seen struct {
		path   string
		header http.Header
		body   string
	}
	got := make(chan seen, 1)
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.URL.Path, r.Header, string(body)}
		if strings.HasSuffix(r.URL.Path, "/messages") {
			write(w, claudeHead+claudeTail)
		} else {
			write(w, chatHead+chatTail+"data: [DONE]\n\n")
		}
	})
	cfg.Headers = func(context.Context) (http.Header, error) {
		return http.Header{"Authorization": {"Bearer workspace"}}, nil
	}
	for name, tt := range map[string]struct {
		model model
		path  string
	}{
		"anthropic": {claude(t, cfg), "/egress/x/v1/messages"},
		"openai":    {chat(t, cfg), "/egress/x/chat/completions"},
	} {
		s, err := tt.model.Stream(t.Context(), hello())
		if err != nil {
			t.Fatal(err)
		}
		if err := readAll(s); err != nil {
			t.Errorf("%s: Err() = %v, want nil", name, err)
		}
		if got := s.Response().Text(); got != "Hi" {
			t.Errorf("%s: Text() = %q, want %q", name, got, "Hi")
		}
		s.Close()
		s.Close()
		req := <-got
		if req.path != tt.path || !strings.Contains(req.body, `"stream":true`) {
			t.Errorf("%s: posted %s to %s, want a stream from %s", name, req.body, req.path, tt.path)
		}
		want := map[string]string{
			"Authorization": "Bearer workspace", "Accept": "text/event-stream", "Content-Type": "application/json",
			"Accept-Encoding": "identity", llm.SessionHeader: "s1",
		}
		if name == "anthropic" {
			want["Anthropic-Version"] = "2023-06-01"
		}
		for k, v := range want {
			if req.header.Get(k) != v {
				t.Errorf("%s: header %s = %q, want %q", name, k, req.header.Get(k), v)
			}
		}
	}
}

// Cancelling the context closes the connection at once, and what came is kept.
func TestStreamCancel(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, llm.Config) model{"anthropic": claude, "openai": chat} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan struct{})
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if name == "anthropic" {
					write(w, claudeHead)
				} else {
					write(w, chatHead)
				}
				<-r.Context().Done()
				close(closed)
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			s, err := open(t, cfg).Stream(ctx, hello())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for s.Next() && s.Event().Type != llm.TextDelta {
			}
			stopped := errors.New("stopped by the person")
			cancel(stopped)
			if s.Next() || !errors.Is(s.Err(), stopped) {
				t.Errorf("Err() after a cancel = %v, want %v", s.Err(), stopped)
			}
			<-closed // the connection, while s is open
			if got := s.Partial().Text(); got != "Hi" {
				t.Errorf("Partial().Text() = %q, want %q", got, "Hi")
			}
			if s.Response() != nil {
				t.Error("Response() after a cancel is not nil")
			}
		})
	}
}

func TestStreamCancelBeforeHeaders(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	cfg := serve(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := claude(t, cfg).Stream(ctx, hello()); !errors.Is(err, context.Canceled) {
		t.Errorf("Stream = %v, want %v", err, context.Canceled)
	}
}

func TestStreamTimeouts(t *testing.T) {
	t.Parallel()
	t.Run("no headers", func(t *testing.T) {
		t.Parallel()
		cfg := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
		cfg.FirstByte = 20 * time.Millisecond
		_, err := claude(t, cfg).Stream(t.Context(), hello())
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Kind != llm.KindTimeout || !e.Retryable {
			t.Errorf("Stream = %v, want a retryable timeout", err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		t.Parallel()
		cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			write(w, claudeHead)
			<-r.Context().Done()
		})
		cfg.Idle = 20 * time.Millisecond
		s, err := claude(t, cfg).Stream(t.Context(), hello())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		err = readAll(s)
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Kind != llm.KindTimeout || !e.Retryable {
			t.Errorf("Err() = %v, want a retryable timeout", err)
		}
	})
}

// A stream that ends before the model has said why it stops is never an answer.
func TestStreamBroken(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		open       func(*testing.T, llm.Config) model
		abort      bool // break the connection instead of ending the body
		want       string
	}{
		{"anthropic, clean end", claudeHead, claude, false, "truncated"},
		{"anthropic, clean end before message_stop", strings.TrimSuffix(claudeHead+claudeTail, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), claude, false, ""},
		{"anthropic, broken before message_stop", strings.TrimSuffix(claudeHead+claudeTail, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), claude, true, ""},
		{"anthropic, broken", claudeHead, claude, true, "truncated"},
		{"anthropic, broken in an event", claudeHead + "event: content_block_delta\ndata: {", claude, true, "truncated"},
		{"anthropic, broken behind message_stop", claudeHead + claudeTail, claude, true, ""},
		{"openai, clean end", chatHead, chat, false, "truncated"},
		{"openai, clean end behind the finish reason", chatHead + chatTail, chat, false, ""},
		{"openai, broken behind the finish reason", chatHead + chatTail, chat, true, ""},
		{"openai, broken behind [DONE]", chatHead + chatTail + "data: [DONE]\n\n", chat, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				write(w, tt.body)
				if tt.abort {
					panic(http.ErrAbortHandler)
				}
			})
			s, err := tt.open(t, cfg).Stream(t.Context(), hello())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = readAll(s)
			if tt.want == "" {
				if err != nil || s.Response() == nil {
					t.Errorf("Err() = %v, want a whole answer", err)
				}
				return
			}
			e, ok := errors.AsType[*llm.Error](err)
			if !ok || e.Kind.String() != tt.want || !errors.Is(err, llm.ErrTruncated) || !e.Retryable {
				t.Errorf("Err() = %v, want kind %s", err, tt.want)
			}
			if s.Response() != nil {
				t.Error("Response() of a broken stream is not nil")
			}
		})
	}
}

// After a whole answer the connection serves the next request.
func TestStreamReusesConnection(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		write(w, claudeHead+claudeTail)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	m := claude(t, llm.Config{HTTP: srv.Client(), BaseURL: srv.URL})
	for range 5 {
		s, err := m.Stream(t.Context(), hello())
		if err != nil {
			t.Fatal(err)
		}
		if err := readAll(s); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	// On a busy machine the body's end can come later than Close waits.
	if n := conns.Load(); n > 2 {
		t.Errorf("5 requests made %d connections, want 1", n)
	}
}

func TestStreamRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		status      int
		contentType string
		body        string
		want        llm.Kind
		message     string
	}{
		{"error status", 529, "application/json", `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, llm.KindOverloaded, "overloaded"},
		{"200 with an error as JSON", 200, "application/json", `{"error":{"message":"no","type":"rate_limit_error"}}`, llm.KindRateLimited, "rate limit"},
		{"200 with something else", 200, "text/html", `<html>`, llm.KindServer, "internal error"},
		{"redirect", 302, "text/html", ``, llm.KindServer, "internal error"},
		{"endless error body", 500, "text/plain", strings.Repeat("x", 1<<20), llm.KindServer, "internal error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.contentType)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			_, err := claude(t, cfg).Stream(t.Context(), hello())
			e, ok := errors.AsType[*llm.Error](err)
			if !ok || e.Kind != tt.want || !strings.Contains(e.Message, tt.message) {
				t.Errorf("Stream = %v, want kind %s", err, tt.want)
			}
		})
	}
}

func TestStreamNotSent(t *testing.T) {
	t.Parallel()
	called := false
	cfg := serve(t, func(http.ResponseWriter, *http.Request) { called = true })
	cfg.Limits.Request = 20
	_, err := claude(t, cfg).Stream(t.Context(), hello())
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Kind != llm.KindTooLarge || e.Retryable || called {
		t.Errorf("Stream of a request over the limit = %v (sent: %v), want too-large", err, called)
	}
	cfg.Limits.Request = 0
	cfg.Headers = func(context.Context) (http.Header, error) { return nil, errors.New("no token") }
	_, err = claude(t, cfg).Stream(t.Context(), hello())
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Kind != llm.KindNetwork || called {
		t.Errorf("Stream without headers = %v (sent: %v), want an error", err, called)
	}
	cfg.Headers = nil
	cfg.BaseURL = "http://127.0.0.1:1"
	_, err = claude(t, cfg).Stream(t.Context(), hello())
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Stream to nobody = %v, want an unavailable fault", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []llm.Config{
		{HTTP: http.DefaultClient}, {HTTP: http.DefaultClient, BaseURL: "ftp://x"}, {HTTP: http.DefaultClient, BaseURL: "::"}, {BaseURL: "http://x"},
	} {
		if _, err := anthropic.New(cfg); err == nil {
			t.Errorf("New(%+v) = nil error, want one", cfg)
		}
	}
}

func ExampleStream() {
	body := strings.NewReader(claudeHead + claudeTail)
	s := llm.NewStream(body, anthropic.NewDecoder("seed", llm.Limits{}), llm.Limits{})
	defer s.Close()
	for s.Next() {
		if ev := s.Event(); ev.Type == llm.TextDelta {
			fmt.Printf("%s\n", ev.Text)
		}
	}
	if s.Err() == nil {
		fmt.Println(string(s.Response().Content), s.Response().Finish)
	}
	// Output:
	// Hi
	// [{"type":"text","text":"Hi"}] stop
}
