package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"signalbox.dev/services/credential-broker/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is net/http's server and counts connections.
type server struct {
	*httptest.Server
	conns atomic.Int32
}

func serve(t *testing.T, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{Server: httptest.NewUnstartedServer(h)}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.Config.ConnState = s.count
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *server) count(_ net.Conn, state http.ConnState) {
	if state == http.StateNew {
		s.conns.Add(1)
	}
}

func transport(t *testing.T, cfg upstream.Config) *upstream.Transport {
	t.Helper()
	tr := upstream.New(cfg)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func newRequest(ctx context.Context, t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// got sends a request and returns the answer on one line: status, body and how the body ended.
func roundTrip(tr *upstream.Transport, req *http.Request) string {
	res, err := tr.RoundTrip(req)
	if err != nil {
		return fmt.Sprint("error: ", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return fmt.Sprintf("%d %q %v", res.StatusCode, b, err)
}

// A request arrives as it was made, and connections are reused.
func TestRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %d %q %d", r.Method, r.RequestURI, r.Host, r.ContentLength, r.Header["X-Two"], len(b))
	})
	tr := transport(t, upstream.Config{})
	host := strings.TrimPrefix(s.URL, "http://")
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", "/v1/a%2Fb?x=1&y=%20", "hello", `POST /v1/a%2Fb?x=1&y=%20 ` + host + ` 5 [\"1\" \"2\"] 5`},
		{"POST", "/", "", `POST / ` + host + ` 0 [\"1\" \"2\"] 0`},
		{"GET", "/models", "", `GET /models ` + host + ` 0 [\"1\" \"2\"] 0`},
		{"DELETE", "/it", "", `DELETE /it ` + host + ` 0 [\"1\" \"2\"] 0`},
		{"POST", "/long", strings.Repeat("x", 5<<20), `POST /long ` + host + ` 5242880 [\"1\" \"2\"] 5242880`},
		{"POST", "/edge", strings.Repeat("x", 32<<10), `POST /edge ` + host + ` 32768 [\"1\" \"2\"] 32768`},
	} {
		req := newRequest(t.Context(), t, tt.method, s.URL+tt.path, tt.body)
		req.Header["X-Two"] = []string{"1", "2"}
		if g, want := roundTrip(tr, req), `200 "`+tt.want+`" <nil>`; g != want {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.method, tt.path, g, want)
		}
	}
	req := newRequest(t.Context(), t, "HEAD", s.URL+"/", "")
	if g := roundTrip(tr, req); g != `200 "" <nil>` {
		t.Errorf("HEAD: got %s", g)
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were made for requests one after the other, want 1", n)
	}
}

// A server that closes an idle connection does not fail a request.
func TestClosedWhileIdle(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	tr := transport(t, upstream.Config{})
	for i := range 3 {
		if g := roundTrip(tr, newRequest(t.Context(), t, "POST", s.URL, "x")); g != `200 "" <nil>` {
			t.Fatalf("request %d: %s", i, g)
		}
		s.CloseClientConnections()
	}
	if n := s.conns.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

// A request that the server may have seen is not repeated, unless its method is idempotent.
func TestNotTwice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		method string
		calls  int32
		want   string
	}{{"POST", 2, "error: unexpected EOF"}, {"DELETE", 2, "error: unexpected EOF"}, {"GET", 3, `200 "" <nil>`}} {
		t.Run(tt.method, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if calls.Add(1) == 2 {
					panic(http.ErrAbortHandler)
				}
			})
			tr := transport(t, upstream.Config{})
			if g := roundTrip(tr, newRequest(t.Context(), t, "GET", s.URL, "")); g != `200 "" <nil>` {
				t.Fatal(g)
			}
			if g := roundTrip(tr, newRequest(t.Context(), t, tt.method, s.URL, "")); g != tt.want {
				t.Errorf("got %s, want %s", g, tt.want)
			}
			if n := calls.Load(); n != tt.calls {
				t.Errorf("the server was asked %d times, want %d", n, tt.calls)
			}
		})
	}
}

// net/http would repeat a request with such a key and no body.
func TestNotTwiceWithKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if calls.Add(1) > 1 {
					if r.Header.Get(key) != "k" {
						t.Errorf("%s = %q, want k", key, r.Header.Get(key))
					}
					panic(http.ErrAbortHandler)
				}
			})
			tr := transport(t, upstream.Config{})
			for _, want := range []string{`200 "" <nil>`, "error: unexpected EOF"} {
				req := newRequest(t.Context(), t, "POST", s.URL, "")
				req.Header.Set(key, "k")
				if g := roundTrip(tr, req); g != want {
					t.Errorf("got %s, want %s", g, want)
				}
			}
			if n := calls.Load(); n != 2 {
				t.Errorf("the server was asked %d times for 2 requests", n)
			}
		})
	}
}

// A server may answer before it has read a long request, and then close the connection or not.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"close", "stay"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			url := raw(t, func(c net.Conn, _ *bufio.Reader) {
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
				if end == "close" {
					_ = c.(*net.TCPConn).CloseWrite()
				}
				<-over
			})
			tr := transport(t, upstream.Config{})
			if g := roundTrip(tr, newRequest(t.Context(), t, "POST", url, strings.Repeat("x", 16<<20))); g != `413 "big" <nil>` {
				t.Errorf("got %s", g)
			}
			close(over)
		})
	}
}

// raw starts a server that gives its connections to h once the head of a request has arrived.
func raw(t testing.TB, h func(net.Conn, *bufio.Reader)) (url string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for line := "x"; line != "\r\n"; {
				if line, err = r.ReadString('\n'); err != nil {
					break
				}
			}
			if err == nil {
				h(c, r)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

// Answers as servers send them, valid and not.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, answer, want string }{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" <nil>`},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3;ext=1\r\n yo\r\n0\r\nX-Trailer: 1\r\n\r\n", `200 "hi yo" <nil>`},
		{"until the end", "HTTP/1.1 200 OK\r\n\r\nhi", `200 "hi" <nil>`},
		{"an old one", "HTTP/1.0 200 OK\r\n\r\nhi", `200 "hi" <nil>`},
		{"nothing", "HTTP/1.1 204 No Content\r\n\r\n", `204 "" <nil>`},
		{"information first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" <nil>`},
		{"another protocol", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhi", `101 "" <nil>`},

		{"cut in a length", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", `200 "hi" unexpected EOF`},
		{"cut in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", `200 "hi" unexpected EOF`},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi", `200 "hi" unexpected EOF`},
		{"cut in the head", "HTTP/1.1 200 OK\r\nContent-", `error: net/http: HTTP/1.x transport connection broken: malformed MIME header: missing colon: "Content-"`},
		{"nothing at all", "", `error: unexpected EOF`},
		{"another language", "SSH-2.0-x\r\n", `error: net/http: HTTP/1.x transport connection broken: malformed HTTP response "SSH-2.0-x"`},
		{"a head without end", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 300), `error: net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 262144 bytes; aborted`},
		{"information without end", strings.Repeat("HTTP/1.1 103 Early Hints\r\nX-A: "+strings.Repeat("a", 1000)+"\r\n\r\n", 300), `error: net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 262144 bytes; aborted`},
		{"both lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", `error: net/http: HTTP/1.x transport connection broken: http: message cannot contain multiple Content-Length headers; got ["2" "3"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := raw(t, func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, tt.answer) })
			if g := roundTrip(transport(t, upstream.Config{}), newRequest(t.Context(), t, "GET", url, "")); g != tt.want {
				t.Errorf("got %s, want %s", g, tt.want)
			}
		})
	}
}

// A connection is not reused after an answer that does not leave it clean. Over TLS the pieces
// of an answer are records, which arrive holdingConn.
func TestNotKept(t *testing.T) {
	t.Parallel()
	const more = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	for _, tt := range []struct {
		name   string
		answer []string
		less   int // bytes of the last record that do not come
	}{
		{"closing", []string{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"}, 0},
		{"more than was asked for", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" + more}, 0},
		{"more in a record of its own", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", more}, 0},
		{"more in half a record", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", more}, 20},
		{"more in the head of a record", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", ""}, 0},
		{"a line", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "\r\n"}, 0},
		{"a body where none may be", []string{"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", "hi"}, 0},
		{"another protocol", []string{"HTTP/1.1 101 Switching Protocols\r\n\r\n"}, 0},
		{"not read to its end", []string{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi"}, 0},
	} {
		for _, scheme := range []string{"http", "https"} {
			if scheme == "http" && tt.answer[len(tt.answer)-1] == "" {
				continue // there are no records
			}
			t.Run(tt.name+" over "+scheme, func(t *testing.T) {
				t.Parallel()
				var conns atomic.Int32
				cfg := upstream.Config{}
				url := raw(t, func(c net.Conn, r *bufio.Reader) {
					conns.Add(1)
					_, _ = io.WriteString(c, strings.Join(tt.answer, ""))
					_, _ = io.Copy(io.Discard, r)
				})
				if scheme == "https" {
					url, cfg = rawTLS(t, func(c *tls.Conn, w *holdingConn, r *bufio.Reader) {
						conns.Add(1)
						w.hold = true
						for _, piece := range tt.answer {
							_, _ = io.WriteString(c, piece)
						}
						if tt.answer[len(tt.answer)-1] == "" {
							w.held = append(w.held, 23, 3, 3)
						}
						_, _ = w.Conn.Write(w.held[:len(w.held)-tt.less])
						_, _ = io.Copy(io.Discard, r)
					})
				}
				tr := transport(t, cfg)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // on a kept one nobody answers
				defer cancel()
				for range 2 {
					res, err := tr.RoundTrip(newRequest(ctx, t, "GET", url, ""))
					if err != nil {
						t.Fatal(err)
					}
					b := make([]byte, 2)
					_, _ = io.ReadFull(res.Body, b)
					if tt.name != "not read to its end" {
						_, _ = io.Copy(io.Discard, res.Body)
					}
					_ = res.Body.Close()
					if n, err := res.Body.Read(b); n != 0 || err == nil {
						t.Errorf("Read after Close = %d, %v, want an error", n, err)
					}
				}
				if n := conns.Load(); n != 2 {
					t.Errorf("%d connections for 2 requests, want 2", n)
				}
			})
		}
	}
}

// rawTLS is raw over TLS. What the server writes is sent at once, or held.
func rawTLS(t testing.TB, h func(*tls.Conn, *holdingConn, *bufio.Reader)) (url string, cfg upstream.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.StartTLS() // for its certificate
	s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			plain, err := l.Accept()
			if err != nil {
				return
			}
			w := &holdingConn{Conn: plain}
			c := tls.Server(w, &tls.Config{Certificates: s.TLS.Certificates, MinVersion: tls.VersionTLS12})
			r := bufio.NewReader(c)
			for line := "x"; line != "\r\n"; {
				if line, err = r.ReadString('\n'); err != nil {
					break
				}
			}
			if err == nil {
				h(c, w, r)
			}
			_ = plain.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "https://" + l.Addr().String(), upstream.Config{TLS: &tls.Config{RootCAs: roots}}
}

// holdingConn holds what is written, to send it at once.
type holdingConn struct {
	net.Conn
	hold bool
	held []byte
}

func (w *holdingConn) Write(b []byte) (int, error) {
	if !w.hold {
		return w.Conn.Write(b)
	}
	w.held = append(w.held, b...)
	return len(b), nil
}

// A cancelled request ends at once, wherever it is, with the cause; and the server sees the
// connection close.
func TestCancel(t *testing.T) {
	t.Parallel()
	why := errors.New("stop was pressed")
	for _, tt := range []struct {
		name   string
		body   string
		answer string
		want   string
	}{
		{"before the answer", "x", "", "error: stop was pressed"},
		{"while a long request is written", strings.Repeat("x", 32<<20), "", "error: stop was pressed"},
		{"in the answer", "x", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", `200 "hi" stop was pressed`},
		{"in the answer to a long request", strings.Repeat("x", 32<<20), "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", `200 "hi" stop was pressed`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			closed := make(chan struct{})
			url := raw(t, func(c net.Conn, r *bufio.Reader) {
				_, _ = io.WriteString(c, tt.answer)
				cancel(why)
				_, _ = io.Copy(io.Discard, r)
				close(closed)
			})
			g := roundTrip(transport(t, upstream.Config{}), newRequest(ctx, t, "POST", url, tt.body))
			if g != tt.want && (tt.answer == "" || g != "error: stop was pressed") {
				t.Errorf("got %s, want %s", g, tt.want)
			}
			<-closed
		})
	}
	t.Run("while dialling", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		tr := upstream.New(upstream.Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel(why)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		_, err := tr.RoundTrip(newRequest(ctx, t, "GET", "http://127.0.0.1:1", "")) //nolint:bodyclose // there is none
		if !errors.Is(err, why) || !errors.Is(err, upstream.ErrNotSent) {
			t.Errorf("RoundTrip = %v, want %v and %v", err, why, upstream.ErrNotSent)
		}
	})
}

// Over TLS only HTTP/1.1 is offered, certificates are verified, and connections are reused.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := &server{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto)
	}))}
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.Config.ConnState = s.count
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	tr := transport(t, upstream.Config{TLS: &tls.Config{RootCAs: roots}})
	for range 2 {
		if g := roundTrip(tr, newRequest(t.Context(), t, "POST", s.URL, "x")); g != `200 "HTTP/1.1" <nil>` {
			t.Errorf("got %s", g)
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were made for requests one after the other, want 1", n)
	}
	_, err := transport(t, upstream.Config{}).RoundTrip(newRequest(t.Context(), t, "POST", s.URL, "x")) //nolint:bodyclose // there is none
	if !errors.Is(err, upstream.ErrNotSent) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a certificate that nobody trusts: %v", err)
	}
}

// Header values cannot inject anything into the head; and an error does not reveal the value,
// which may be a secret.
func TestHead(t *testing.T) {
	t.Parallel()
	tr := upstream.New(upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			b, _ := io.ReadAll(there)
			if len(b) > 0 {
				t.Errorf("%q was sent", b)
			}
			_ = there.Close()
		}()
		return here, nil
	}})
	for _, tt := range []struct {
		name   string
		change func(*http.Request)
	}{
		{"value", func(r *http.Request) { r.Header.Set("X-Api-Key", "secret\r\nX-Evil: 1") }},
		{"name", func(r *http.Request) { r.Header["X: 1\r\nX-Evil"] = []string{"secret"} }},
		{"method", func(r *http.Request) { r.Method = "GET /secret HTTP/1.1\r\nX:" }},
		{"host", func(r *http.Request) { r.Host = "a\r\nX-Evil: 1" }},
		{"query", func(r *http.Request) { r.URL.RawQuery = "a=b c" }},
	} {
		req := newRequest(t.Context(), t, "GET", "http://h.test", "")
		tt.change(req)
		_, err := tr.RoundTrip(req) //nolint:bodyclose // there is none
		if err == nil || tt.name != "method" && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: RoundTrip = %v, want an error that tells no value", tt.name, err)
		}
	}
}

// Idle connections are closed after a while.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		tr := upstream.New(upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			open.Add(1)
			go func() {
				defer open.Add(-1)
				r := bufio.NewReader(there)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						_ = there.Close()
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
			return here, nil
		}})
		use := func() {
			t.Helper()
			if g := roundTrip(tr, newRequest(t.Context(), t, "POST", "http://h.test", "x")); g != `200 "" <nil>` {
				t.Fatal(g)
			}
			synctest.Wait()
		}
		use()
		time.Sleep(60 * time.Second) //nolint:forbidigo // synctest's clock
		use()
		if n := open.Load(); n != 1 {
			t.Errorf("%d connections after a minute, want 1", n)
		}
		time.Sleep(3 * time.Minute) //nolint:forbidigo // synctest's clock
		synctest.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d connections after three more, want 0", n)
		}
		use()
		tr.CloseIdleConnections()
		synctest.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d connections after CloseIdleConnections, want 0", n)
		}
	})
}

// Whatever a server answers, the exchange ends, and nothing of it is left on a connection that
// is reused.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\nrest", "HTTP/1.0 200 OK\r\n\r\nhi", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		dials := 0
		tr := upstream.New(upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			dials++
			first := dials == 1
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				if _, err := http.ReadRequest(bufio.NewReader(there)); err != nil {
					return
				}
				if !first {
					_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond")
					return
				}
				_, _ = there.Write(answer)
			}()
			return here, nil
		}})
		defer tr.CloseIdleConnections()
		_ = roundTrip(tr, newRequest(t.Context(), t, "GET", "http://h.test", ""))
		if g := roundTrip(tr, newRequest(t.Context(), t, "GET", "http://h.test", "")); dials > 1 && g != `200 "second" <nil>` {
			t.Errorf("the answer after %q: %s", answer, g)
		}
	})
}

// BenchmarkFirstByte measures a short exchange over loopback, compared with net/http's own.
func BenchmarkFirstByte(b *testing.B) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	plain, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer plain.Close()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	trust := &tls.Config{RootCAs: roots}
	ours, theirs := upstream.New(upstream.Config{TLS: trust}), &http.Transport{DisableCompression: true, TLSClientConfig: trust}
	defer ours.CloseIdleConnections()
	defer theirs.CloseIdleConnections()
	payload := bytes.Repeat([]byte("x"), 4<<10)
	for _, tt := range []struct {
		name string
		url  string
		rt   http.RoundTripper
	}{{"upstream", plain.URL, ours}, {"nethttp", plain.URL, theirs}, {"upstream tls", secure.URL, ours}, {"nethttp tls", secure.URL, theirs}} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, tt.url, bytes.NewReader(payload))
				if err != nil {
					b.Fatal(err)
				}
				res, err := tt.rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
}
