package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/subject"
	documentsync "signalbox.dev/services/document-sync"
)

func TestHelpAndMistakes(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), []string{"--help"}, nil, &out); err != nil || !strings.Contains(out.String(), "DOCUMENT_SYNC_ADDR") {
		t.Errorf("--help = %v\n%s", err, out.String())
	}
	for want, environ := range map[string][]string{
		`"DATABASE_URL" is not set`: {"TRUSTED_KEYS=gateway=x"},
		"TRUSTED_KEYS: the public":  {"DATABASE_URL=postgres://h/d", "TRUSTED_KEYS=gateway=x"},
	} {
		if err := run(t.Context(), nil, environ, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("run with %q = %v, want %q", environ, err, want)
		}
	}
	if err := run(t.Context(), []string{"serve"}, nil, &out); err == nil {
		t.Error("an argument was taken")
	}
}

func TestServes(t *testing.T) {
	t.Parallel()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	db, srv, addr := pgtest.New(t, documentsync.Migrations()), natstest.New(t), freeAddr(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, nil, []string{
			"DOCUMENT_SYNC_ADDR=" + addr, "DATABASE_URL=" + db.AdminURL, "NATS_URL=" + srv.ClientURL(),
			"NATS_PASSWORD=" + srv.Password(subject.DocumentSync).Reveal(), "TRUSTED_KEYS=gateway=" + key.Public(), "LOG_LEVEL=error",
		}, t.Output())
	}()
	awaitReady(t, "http://"+addr+"/ready", ended)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run = %v", err)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// awaitReady returns when url answers 200.
func awaitReady(t *testing.T, url string, ended <-chan error) {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("run = %v", err)
		case <-deadline:
			t.Fatalf("%s is not ready after 20 s: %v", url, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
