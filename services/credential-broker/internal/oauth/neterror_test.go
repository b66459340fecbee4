package oauth_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

// raw is a server that answers each request with a text.
func raw(t *testing.T, answer string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			_, err = io.WriteString(c, answer)
			if err := errors.Join(err, c.Close()); err != nil {
				t.Errorf("answer: %v", err)
			}
		}
	}()
	return "http://" + l.Addr().String()
}

// An answer that is no HTTP is not quoted: it may be the tokens.
func TestAnswerThatIsNoHTTP(t *testing.T) {
	t.Parallel()
	const tokens = `{"access_token":"access-1","refresh_token":"refresh-1"}`
	for name, answer := range map[string]string{
		"without a status line": tokens + "\r\n\r\n",
		"in a status line":      "HTTP/1.1 " + tokens + "\r\n\r\n",
		"as a header":           "HTTP/1.1 200 OK\r\n" + tokens + "\r\n\r\n{}",
		"as a length":           "HTTP/1.1 200 OK\r\nContent-Length: " + tokens + "\r\n\r\n{}",
		"as an encoding":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + tokens + "\r\n\r\n{}",
		"as a trailer":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\n{}\r\n0\r\n" + tokens + "\r\n\r\n",
		"as a chunk":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + tokens + "\r\n",
		"as a place to go to":   "HTTP/1.1 302 Found\r\nLocation: http://x:y" + tokens + "\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
			url := raw(t, answer)
			k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, url, rotating) })
			ref := w.grant(k)
			w.expire(ref, k)
			_, err := k.Token(t.Context(), ref)
			wantFault(t, "Token()", err, fault.Unavailable, "")
			noTokens(t, "the error of Token()", err.Error())
			noTokens(t, "the status", w.status(ref).LastError)
			_, err = k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
			if err == nil {
				t.Error("Start() of a device = nil")
			} else {
				noTokens(t, "the error of Start()", err.Error())
			}
			r, err := k.Revoke(t.Context(), w.who, ref)
			if err != nil || r.AtProvider {
				t.Errorf("Revoke() = %+v, %v", r, err)
			}
			noTokens(t, "the sign-out", r.Why)
			noTokens(t, "the log", w.log.String())
		})
	}
}

// Network failures are told apart in fixed words.
func TestSanitizedErrors(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	choosy := httptest.NewUnstartedServer(http.NotFoundHandler())
	choosy.TLS = &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}
	choosy.StartTLS()
	defer choosy.Close()
	for url, want := range map[string]string{
		gone.URL:   "nothing was sent to the authorization server: connection refused",
		secure.URL: "its certificate is from an unknown authority",
		strings.Replace(plain.URL, "http:", "https:", 1): "it does not speak TLS",
		choosy.URL:                "it refused the TLS connection",
		raw(t, ""):                "the connection was closed",
		"https://nowhere.invalid": "its name could not be looked up|there is no host with that name",
	} {
		w := newWorld(t, authserver.Settings{}, rotating)
		k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, url, rotating) })
		ref := w.grant(k)
		w.expire(ref, k)
		_, err := k.Token(t.Context(), ref)
		wantFault(t, "Token()", err, fault.Unavailable, "")
		one, other, _ := strings.Cut(want, "|")
		if text := w.status(ref).LastError; !strings.Contains(text, one) && (other == "" || !strings.Contains(text, other)) {
			t.Errorf("%s: the status says %q, want %q", url, text, want)
		}
	}
}
