package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/services/credential-broker/admin"
)

// loopback is a page on this machine to which a provider sends the browser back with the
// code of a sign-in (RFC 8252, section 7.3).
type loopback struct{ listener net.Listener }

// listenLoopback opens a free port, until close.
func listenLoopback(ctx context.Context) (*loopback, error) {
	l, err := httpserver.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("wait for the browser: %w", err)
	}
	return &loopback{l}, nil
}

func (b *loopback) close() { _ = b.listener.Close() } // receive may have closed it

func (b *loopback) redirect() string {
	return "http://" + b.listener.Addr().String() + admin.LoopbackPath
}

// errTimedOut ends the wait for a browser.
var errTimedOut = errors.New("the sign-in has expired: start again")

// lastPage bounds how long the browser may take to load the last page.
const lastPage = 2 * time.Second

// receive completes a login of the accounts commands; see await.
func (b *loopback) receive(ctx context.Context, scope *admin.Scope, l admin.Login) (a admin.Account, err error) {
	err = b.await(ctx, l, func(answer admin.LoginAnswer) (err error) {
		a, err = scope.CompleteLogin(ctx, answer)
		return err
	})
	return a, err
}

// await completes the login with the first answer that has its state, shows the outcome in
// the browser, and closes the port. Other requests are refused and change nothing: every
// program on this machine, and every web page, can call this port.
func (b *loopback) await(ctx context.Context, l admin.Login, complete func(admin.LoginAnswer) error) error {
	page, err := url.Parse(l.URL)
	if err != nil {
		return fmt.Errorf("read the address of the sign-in: %w", err)
	}
	in := &callback{login: l.ID, state: page.Query().Get("state"), answers: make(chan admin.LoginAnswer), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET "+admin.LoopbackPath, in)
	mux.Handle("GET "+admin.DocumentLoopbackPath, in)
	waiting, cancel := context.WithDeadline(ctx, l.ExpiresAt)
	defer cancel()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var served sync.WaitGroup
	served.Go(func() {
		// If the listener fails, nobody signs in, and the wait times out.
		_ = httpserver.Serve(serving, httpserver.Config{Listener: b.listener, Handler: mux, Log: slog.New(slog.DiscardHandler), Drain: lastPage})
	})
	select {
	case answer := <-in.answers:
		in.err = complete(answer)
	case <-waiting.Done():
		if in.err = errTimedOut; ctx.Err() != nil {
			in.err = errAbandoned
		}
	}
	close(in.done)
	stop()
	served.Wait()
	return in.err
}

// callback passes on the answer of one login, and shows the outcome in the browser.
type callback struct {
	login   uuid.UUID
	state   string
	answers chan admin.LoginAnswer
	done    chan struct{} // closed when err says how it ended
	err     error
}

func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer") // this page's address holds the code
	q := r.URL.Query()
	answer := admin.LoginAnswer{Login: c.login, State: q.Get("state"), Code: q.Get("code"), Error: q.Get("error"), Issuer: q.Get("iss"), Redirect: r.URL.Path}
	if subtle.ConstantTimeCompare([]byte(answer.State), []byte(c.state)) == 0 || answer.Code == "" && answer.Error == "" {
		show(w, http.StatusBadRequest, "This is not the sign-in that the command line waits for.")
		return
	}
	select {
	case c.answers <- answer:
	case <-c.done: // a repeat
	case <-r.Context().Done():
		return
	}
	<-c.done
	if c.err != nil {
		show(w, http.StatusOK, "You are not signed in. The terminal says why.")
		return
	}
	show(w, http.StatusOK, "You are signed in, and can close this page.")
}

func show(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<!doctype html><title>Signalbox</title><p>"+text+"\n") // the terminal says it too
}
