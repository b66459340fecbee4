package e2e_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/mtls/mtlstest"

	"signalbox.dev/services/e2e/editing"
	"signalbox.dev/services/e2e/world"
)

// All services with TLS, which is required: a document that two people edit and a run, watched live,
// before and after all certificates were replaced.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := mtlstest.NewAuthority(t)
	folder := t.TempDir()
	issue := func() {
		for _, name := range append(world.Services(), world.NATSName) {
			dir := filepath.Join(folder, name)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			ca.Files(t, dir, mtlstest.Certificate{Names: []string{name}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
		}
	}
	issue()
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: bin, Replicas: 1, Partitions: 1, TLS: folder})
	w = started(t, w, err)
	who, err := w.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	c := w.Client(0, who)
	for _, when := range []string{"before", "after the certificates were replaced"} {
		var made struct{ Document struct{ ID string } }
		if err := c.Call(t.Context(), world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]any{"name": "Plan"}}, &made); err != nil {
			t.Errorf("%s: make a document: %v", when, err)
		} else {
			editTogether(t, func() string { return editing.Place(w, 0, who, made.Document.ID) })
		}
		session, err := c.NewSession(t.Context(), "")
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		s, err := c.Send(t.Context(), session, world.Sending{Content: "hello"})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		for err == nil {
			_, err = s.Next()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream ends with %v", when, err)
		}
		run, err := c.Run(t.Context(), s.Run)
		if err != nil || run.State != "done" {
			t.Errorf("%s: the run is %+v, %v, want done", when, run, err)
		}
		issue()
	}
}

// editTogether lets two editors of a document see an edit of one of them.
func editTogether(t *testing.T, place func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := editing.NewEditor("a", 1, place), editing.NewEditor("b", 2, place)
	var running errgroup.Group
	for _, e := range []*editing.Editor{a, b} {
		running.Go(func() error { return e.Run(ctx) })
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s did not happen", what)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	await("a socket of each editor", func() bool { return a.Synced() && b.Synced() })
	if err := a.Edit(); err != nil {
		t.Fatal(err)
	}
	await("the other's edit", func() bool { return b.Seen()[a.ClientID()] > 0 })
	cancel()
	if err := running.Wait(); err != nil {
		t.Error(err)
	}
}
