package proxy_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// canned is a transport that answers every request with one body, an event stream unless kind
// says otherwise.
type canned struct {
	body func() io.Reader
	kind string
}

func (c *canned) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {cmp.Or(c.kind, "text/event-stream")}}, ContentLength: -1,
		Body: io.NopCloser(c.body()), Request: req,
	}, nil
}

// steps reads n bytes at a time.
type steps struct {
	rest []byte
	n    int
}

func (s *steps) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.n)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// direct serves one request without a network and reports whether it ended cleanly.
func direct(h http.Handler, w http.ResponseWriter, req *http.Request) (clean bool) {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
		}
	}()
	h.ServeHTTP(w, req)
	return true
}

// Split at every position, with every line ending, a stream comes out as it went in.
func TestEverySplit(t *testing.T) {
	t.Parallel()
	source := &canned{}
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = source })
	r.pool.all = []pool.Account{r.account("anthropic", "http://up.test", long)}
	token := r.token()
	for _, end := range []string{"\n", "\r\n", "\r"} {
		in := strings.ReplaceAll(msgStart+msgPing+": c\n\n"+msgBlock+"data: 1\ndata: 2\n\n"+msgDelta+msgStop, "\n", end)
		for i := range len(in) + 1 {
			source.body = func() io.Reader {
				return io.MultiReader(strings.NewReader(in[:i]), strings.NewReader(in[i:]))
			}
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, messages, strings.NewReader(asking))
			req.Header.Set("X-Api-Key", token)
			w := httptest.NewRecorder()
			if clean := direct(r.proxy, w, req); !clean || w.Body.String() != in {
				t.Fatalf("with %q, split behind %q: clean %v, got %q", end, in[:i], clean, w.Body.String())
			}
		}
	}
}

// sink is a caller that reads immediately.
type sink struct {
	header http.Header
	bytes  int
}

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) WriteHeader(int)                  {}
func (s *sink) Flush()                           {}
func (s *sink) SetWriteDeadline(time.Time) error { return nil }
func (s *sink) Write(p []byte) (int, error)      { s.bytes += len(p); return len(p), nil }

const chunks = 1000

// BenchmarkStream forwards streams of 1,000 chunks, one read each, through the whole proxy
// except the sockets. bare is the least that any proxy does: read, write, flush.
func BenchmarkStream(b *testing.B) {
	for _, tt := range []struct{ name, path, provider, chunk, end string }{
		{"anthropic", messages, "anthropic", msgDelta, msgStop},
		{"chat", chats, "openai", chatDelta, chatDone},
	} {
		in := []byte(strings.Repeat(tt.chunk, chunks-1) + tt.end)
		b.Run(tt.name, func(b *testing.B) {
			source := &canned{body: func() io.Reader { return &steps{in, len(tt.chunk)} }}
			r := newRig(b, &loopback{}, func(c *proxy.Config) { c.Open = source })
			r.pool.all = []pool.Account{r.account(tt.provider, "http://up.test", long)}
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				req := r.request(b.Context(), tt.path, asking)
				req.RequestURI = tt.path
				w := &sink{header: http.Header{}}
				if !direct(r.proxy, w, req) || w.bytes != len(in) {
					b.Fatalf("%d of %d bytes", w.bytes, len(in))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*chunks), "ns/chunk")
		})
		b.Run(tt.name+"/bare", func(b *testing.B) {
			buf := make([]byte, 32<<10)
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				w := &sink{header: http.Header{}}
				src := &steps{in, len(tt.chunk)}
				for {
					n, err := src.Read(buf)
					_, _ = w.Write(buf[:n])
					w.Flush()
					if err != nil {
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*chunks), "ns/chunk")
		})
	}
}

// BenchmarkLoopback forwards chunks over loopback, each once the previous one has arrived,
// through the proxy and through the minimal loop of any proxy over net/http.
func BenchmarkLoopback(b *testing.B) {
	r := newRig(b, &loopback{}, nil)
	next := make(chan struct{})
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for range next {
			_, _ = io.WriteString(w, chatDelta)
			_ = rc.Flush()
		}
	})
	base := r.pool.all[0].Base.String() + "/chat/completions"
	bare := &httptest.Server{Listener: r.net.listen(b), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		out, err := http.NewRequestWithContext(req.Context(), req.Method, base, bytes.NewReader(body))
		if err != nil {
			return
		}
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return
		}
		defer res.Body.Close()
		_, _ = io.Copy(flushed{w, http.NewResponseController(w)}, res.Body)
	})}}
	bare.Start()
	defer bare.Close()
	for _, tt := range []struct{ name, url string }{{"egress", r.url + chats}, {"bare", bare.URL}} {
		b.Run(tt.name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			req := r.request(ctx, chats, asking)
			var err error
			if req.URL, err = url.Parse(tt.url); err != nil {
				b.Fatal(err)
			}
			next = make(chan struct{}, 1)
			defer close(next)
			next <- struct{}{}
			res, err := r.client.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			defer res.Body.Close()
			chunk := make([]byte, len(chatDelta))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.ReadFull(res.Body, chunk); err != nil {
					b.Fatal(err)
				}
				next <- struct{}{}
			}
		})
	}
}

// flushed flushes every write.
type flushed struct {
	w  io.Writer
	rc *http.ResponseController
}

// Write implements io.Writer.
func (f flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.rc.Flush()
}

// BenchmarkFirstEvent measures the time from sending a request to its first meaningful event
// over loopback, directly and through the proxy.
func BenchmarkFirstEvent(b *testing.B) {
	r := newRig(b, &loopback{}, nil)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		stream(msgStart, msgBlock+msgStop)(w, req)
	})
	for _, tt := range []struct{ name, url string }{
		{"straight", r.pool.all[0].Base.String() + "/v1/messages"},
		{"proxy", r.url + messages},
	} {
		b.Run(tt.name, func(b *testing.B) {
			body := make([]byte, 4096)
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, tt.url, strings.NewReader(asking))
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("X-Api-Key", r.token())
				res, err := r.client.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				for n := 0; !bytes.Contains(body[:n], []byte("content_block_start")); {
					m, err := res.Body.Read(body[n:])
					if n += m; err != nil && m == 0 {
						b.Fatal(err)
					}
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
}
