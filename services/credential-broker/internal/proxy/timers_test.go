package proxy_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// hang waits until the request is over.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func pause(d time.Duration) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
}

func TestTimers(t *testing.T) {
	t.Parallel()
	headers := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
	}
	tests := []struct {
		name     string
		path     string
		body     string
		upstream http.HandlerFunc
		after    time.Duration
		status   int
		want     string // in the body
		broken   bool
	}{
		{"headers of a stream", messages, asking, hang, 3 * time.Minute, 504, `"timeout_error","message":"the provider anthropic sent no headers in time"`, false},
		{"headers without a stream", messages, `{}`, hang, 10 * time.Minute, 504, "no headers in time", false},
		{"headers where only a tool's input says stream", messages, `{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"stream":true}}]}]}`, hang, 10 * time.Minute, 504, "no headers in time", false},
		{"headers where that says so too", messages, `{"messages":[{"input":{"stream":false}}], "stream" : true}`, hang, 3 * time.Minute, 504, "no headers in time", false},
		{"headers of a quick route", "/egress/anthropic/v1/models", ``, hang, 30 * time.Second, 504, "no headers in time", false},
		{"first event", messages, asking, then(headers, hang), 4 * time.Minute, 200, "no first event in time", true},
		{"first event, comments only", messages, asking, then(stream(": wait\n\n"), pause(time.Minute), stream(": wait\n\n"), hang), 4 * time.Minute, 200, "no first event in time", true},
		{"idle", messages, asking, then(stream(msgBlock), pause(time.Minute), stream(msgDelta), hang), 3 * time.Minute, 200, msgBlock + msgDelta + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\"", true},
		{"idle in a plain body", messages, `{}`, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		}, 2 * time.Minute, 200, "half", true},
		{"an error's body", messages, asking, func(w http.ResponseWriter, r *http.Request) {
			answer(400, `{"error":`)(w, r)
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		}, 15 * time.Second, 400, `{"error":`, true},
		{"no end after the terminal event", messages, asking, then(stream(goodAnswer), hang), 5 * time.Second, 200, goodAnswer, false},
		{"pings keep a stream alive", messages, asking, then(stream(msgBlock), pause(90*time.Second), stream(msgPing), pause(90*time.Second), stream(msgPing), pause(90*time.Second), stream(msgStop)), 270 * time.Second, 200, msgStop, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &memory{}, func(c *proxy.Config) {
					c.Timers = proxy.Timers{FirstEvent: 4 * time.Minute, Idle: 2 * time.Minute, Gate: 10 * time.Second, Last: 5 * time.Second}
				})
				r.upstream("anthropic", tt.upstream)
				began := time.Now()
				got := r.post(tt.path, tt.body)
				if took := time.Since(began); took != tt.after {
					t.Errorf("it took %v, want %v", took, tt.after)
				}
				if got.status != tt.status || !strings.Contains(got.body, tt.want) || (got.err != nil) != tt.broken {
					t.Errorf("got %d %q, end %v, want %d with %q, broken %v", got.status, got.body, got.err, tt.status, tt.want, tt.broken)
				}
			})
		})
	}
}

// While the gate is shut the caller sees no headers. The first meaningful event opens it at
// once, and the gate's time opens it with the preamble.
func TestGateHoldsBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pause time.Duration
		opens time.Duration
		first string
	}{
		{"until an event means something", 3 * time.Second, 3 * time.Second, msgStart + msgPing + msgBlock},
		{"until its time is up", 30 * time.Second, 10 * time.Second, msgStart + msgPing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &memory{}, nil)
				r.upstream("anthropic", then(stream(msgStart, msgPing), pause(tt.pause), stream(msgBlock, msgStop)))
				began := time.Now()
				res, err := r.client.Do(r.request(t.Context(), messages, asking))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if took := time.Since(began); took != tt.opens {
					t.Errorf("headers came after %v, want %v", took, tt.opens)
				}
				first := make([]byte, len(tt.first))
				if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != tt.first {
					t.Errorf("first came %q, %v, want %q", first, err, tt.first)
				}
				if took := time.Since(began); took != tt.opens {
					t.Errorf("the first events came after %v, want %v", took, tt.opens)
				}
				if rest, err := io.ReadAll(res.Body); err != nil || string(first)+string(rest) != msgStart+msgPing+msgBlock+msgStop {
					t.Errorf("then came %q, %v", rest, err)
				}
			})
		})
	}
}

// An error after the gate's time is shown and not retried.
func TestErrorAfterGateTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, nil)
		r.upstream("anthropic", then(stream(msgStart), pause(time.Minute), stream(msgError)), "first-account", "second-account")
		got := r.post(messages, asking)
		if got.status != 200 || got.body != msgStart+msgError || got.err != nil {
			t.Errorf("got %d %q, end %v", got.status, got.body, got.err)
		}
		if n := len(r.pool.got()); n != 1 {
			t.Errorf("%d accounts were used, want 1", n)
		}
	})
}

// A caller that does not read is cut off, and its upstream request with it.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, func(c *proxy.Config) { c.Timers.Write = 20 * time.Second })
		gone := make(chan time.Time, 1)
		r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			stream(msgBlock)(w, req)
			for req.Context().Err() == nil {
				if _, err := io.WriteString(w, msgDelta); err != nil {
					break
				}
			}
			gone <- time.Now()
		})
		began := time.Now()
		res, err := r.client.Do(r.request(t.Context(), messages, asking))
		if err != nil {
			t.Fatal(err)
		}
		if took := (<-gone).Sub(began); took < 19*time.Second || took > 21*time.Second {
			t.Errorf("the upstream request ended after %v, want 20s", took)
		}
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Error("the stream ends cleanly")
		}
		_ = res.Body.Close()
		r.proxy.Wait()
		if got := r.pool.got(); len(got) != 1 {
			t.Errorf("reports: %v", got)
		}
	})
}

// A caller that does not finish its request gets an error and is disconnected.
func TestSlowRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, func(c *proxy.Config) { c.Timers.Body = 40 * time.Second })
		r.upstream("anthropic", answer(200, `{}`))
		body, feed := io.Pipe()
		defer feed.Close()
		req := r.request(t.Context(), messages, "")
		req.Body, req.ContentLength = body, 100
		began := time.Now()
		got := r.do(req)
		if took := time.Since(began); got.status != 408 || took != 40*time.Second {
			t.Errorf("got %d %s, %v after %v, want 408 after 40s", got.status, got.body, got.err, took)
		}
	})
}

// A request that arrives slowly is waited for, but not for ever.
func TestRequestArrives(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		sized  bool
		pieces int
		status int
		after  time.Duration
	}{
		{"in the end", true, 10, 200, 300 * time.Second},
		{"of unknown length", false, 10, 200, 300 * time.Second},
		{"never", true, 100, 408, 400 * time.Second},
		{"never, of unknown length", false, 100, 408, 400 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const piece = 16 << 10 // more than buffers on the way hold back
				r := newRig(t, &memory{}, func(c *proxy.Config) { c.Timers.Body = 40 * time.Second })
				var f recorder
				r.upstream("anthropic", f.then(answer(200, `{}`)))
				body, feed := io.Pipe()
				var feeding sync.WaitGroup
				defer feeding.Wait()
				defer body.Close()
				feeding.Go(func() {
					for range tt.pieces {
						<-time.After(30 * time.Second)
						if _, err := feed.Write(make([]byte, piece)); err != nil {
							return
						}
					}
					_ = feed.Close() // the caller's end, which cannot fail
				})
				req := r.request(t.Context(), messages, "")
				req.Body, req.ContentLength = body, -1
				if tt.sized {
					req.ContentLength = int64(tt.pieces * piece)
				}
				began := time.Now()
				got := r.do(req)
				if took := time.Since(began); got.status != tt.status || took != tt.after || tt.status == 200 && len(f.body) != tt.pieces*piece {
					t.Errorf("got %d %s, %v after %v with %d bytes at the provider, want %d after %v", got.status, got.body, got.err, took, len(f.body), tt.status, tt.after)
				}
			})
		})
	}
}

// When the caller leaves, the upstream request ends, wherever it is.
func TestCancelReachesUpstream(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		upstream http.HandlerFunc
		opened   bool
	}{
		"before the headers": {nil, false},
		"in the gate":        {stream(msgStart), false},
		"in the stream":      {stream(msgStart, msgBlock, msgDelta), true},
		"in a plain body":    {answer(200, `{`), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			arrived, gone := make(chan struct{}), make(chan time.Time, 1)
			r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				if tt.upstream != nil {
					tt.upstream(w, req)
					_ = http.NewResponseController(w).Flush()
				}
				close(arrived)
				<-req.Context().Done()
				gone <- time.Now()
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				res, err := r.client.Do(r.request(ctx, messages, asking))
				if err == nil {
					if _, err = io.Copy(io.Discard, res.Body); err == nil {
						t.Error("a cancelled answer ends cleanly")
					}
					_ = res.Body.Close()
				}
			}()
			<-arrived
			began := time.Now()
			cancel()
			t.Logf("cancelled upstream after %v", (<-gone).Sub(began))
			<-done
			r.proxy.Wait()
			if got := r.pool.got(); len(got) != 1 || got[0].Reason != pool.Cancelled && !tt.opened {
				t.Errorf("reports: %v", got)
			}
			if !strings.Contains(r.logs.String(), `"outcome":"cancelled"`) {
				t.Errorf("the log does not say that it was cancelled:\n%s", r.logs)
			}
		})
	}
}

// At shutdown open streams end with an error event and a broken end, requests without an answer
// get an error, and new ones are refused.
func TestAbort(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	arrived := make(chan struct{}, 2)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if strings.HasSuffix(req.URL.Path, "messages") {
			stream(msgBlock)(w, req)
		}
		arrived <- struct{}{}
		<-req.Context().Done()
	})
	results := make(chan result, 2)
	for _, path := range []string{messages, "/egress/anthropic/v1/other"} {
		go func() { results <- r.post(path, asking) }()
	}
	<-arrived
	<-arrived
	r.proxy.Abort()
	for range 2 {
		switch got := <-results; got.status {
		case 200:
			if !strings.HasPrefix(got.body, msgBlock+"event: error\n") || !strings.Contains(got.body, "shutting down") || got.err == nil {
				t.Errorf("the stream ends with %q, %v", got.body, got.err)
			}
		case 503:
			if got.header.Get("Retry-After") != "1" {
				t.Errorf("the answer is %s %v", got.body, got.header)
			}
		default:
			t.Errorf("got %+v", got)
		}
	}
	if got := r.post(messages, asking); got.status != 503 || !strings.Contains(got.body, "shutting down") {
		t.Errorf("a new request gets %d %s", got.status, got.body)
	}
}
