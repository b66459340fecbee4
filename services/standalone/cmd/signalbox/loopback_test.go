package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/admin"
)

var addressForm = regexp.MustCompile(`http://\S+`)

// browse implements the script command; see TestAccounts.
func (p *place) browse(t *testing.T, declines bool, args ...string) string {
	t.Helper()
	ours, theirs := pty(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // expect then says what it waits for
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), append(p.environ, "NO_COLOR=1")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the program has its own
	d := &dialogue{t: t, tty: ours}
	d.expect("--paste.")
	page := addressForm.FindString(d.seen.String())
	u, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	redirect, state := u.Query().Get("redirect_uri"), u.Query().Get("state")
	for _, strange := range []string{"", "?code=x", "?code=x&state=x", "?error=access_denied", "?state=" + state} {
		if status, _ := visit(t, redirect+strange); status != http.StatusBadRequest {
			t.Errorf("GET %s of a stranger: %d, want %d", strange, status, http.StatusBadRequest)
		}
	}
	if declines {
		page = redirect + "?error=access_denied&state=" + state
	}
	_, text := visit(t, page)
	rest, err := io.ReadAll(ours)
	if err != nil && !errors.Is(err, syscall.EIO) { // the other end is closed
		t.Fatal(err)
	}
	if err := cmd.Wait(); (err != nil) != declines {
		t.Errorf("%v: %v", args, err)
	}
	return strings.ReplaceAll(d.seen.String()+string(rest), "\r\n", "\n") + text
}

func visit(t *testing.T, page string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// The wait ends when the sign-in has expired, and the port is closed.
func TestLoopbackLate(t *testing.T) {
	t.Parallel()
	back, err := listenLoopback(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer back.close()
	_, err = back.receive(t.Context(), nil, admin.Login{URL: "http://127.0.0.1/?state=x", ExpiresAt: time.Now()})
	if !errors.Is(err, errTimedOut) {
		t.Errorf("receive() = %v, want %v", err, errTimedOut)
	}
	if conn, err := back.listener.Accept(); err == nil {
		_ = conn.Close()
		t.Error("the port is open still")
	}
}

// The completion is told at which of the two pages the browser arrived.
func TestLoopbackPages(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"/callback", "/callback/document"} {
		back, err := listenLoopback(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer back.close()
		link := "http://" + back.listener.Addr().String() + page + "?state=x&code=c&iss=i"
		shown := make(chan string, 1)
		go func() { // ends with the page
			_, text := visit(t, link)
			shown <- text
		}()
		var got admin.LoginAnswer
		err = back.await(t.Context(), admin.Login{URL: "https://as.example/?state=x", ExpiresAt: time.Now().Add(time.Minute)}, func(a admin.LoginAnswer) error {
			got = a
			return nil
		})
		if text := <-shown; err != nil || got.Redirect != page || got.Issuer != "i" || !strings.Contains(text, "You are signed in") {
			t.Errorf("await() = %v, with the answer %+v; the page says %q, want the redirect %s", err, got, text, page)
		}
	}
}
