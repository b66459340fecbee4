package natsd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg natsd.Config) (*natsd.Server, error) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = natstest.Log(t)
	}
	srv, err := natsd.Start(t.Context(), cfg)
	if err == nil {
		t.Cleanup(srv.Shutdown)
	}
	return srv, err
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // LastError has it
	nc, err := nats.Connect(url, append(opts, quiet)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(nc) })
	return nc
}

// closeConn returns when the connection's goroutines are ending.
func closeConn(nc *nats.Conn) {
	closed := nc.StatusChanged(nats.CLOSED)
	if nc.IsClosed() {
		return
	}
	nc.Close()
	<-closed
}

func jet(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestStartInProcessOnly(t *testing.T) {
	t.Parallel()
	srv, err := start(t, natsd.Config{Dir: filepath.Join(t.TempDir(), "a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	if got := srv.ClientURL(); got != "" {
		t.Errorf("ClientURL() = %q, want none", got)
	}
	js := jet(t, connect(t, "", srv.Options("anybody")...))
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err != nil {
		t.Errorf("CreateStream = %v, want nil", err)
	}
}

func TestStartOnAPort(t *testing.T) {
	t.Parallel()
	srv, err := start(t, natsd.Config{Dir: t.TempDir(), Port: -1, Users: subject.Users(natstest.Topology(t))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect(srv.ClientURL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("Connect without a password = %v, want %v", err, nats.ErrAuthorization)
	}
	nc := connect(t, srv.ClientURL(), nats.UserInfo(subject.Gateway, srv.Password(subject.Gateway).Reveal()))
	if err := nc.Flush(); err != nil {
		t.Error(err)
	}
	if got := nc.MaxPayload(); got != subject.MaxMessage {
		t.Errorf("MaxPayload = %d, want %d", got, subject.MaxMessage)
	}
}

func TestRestartKeepsMessagesPortAndPasswords(t *testing.T) {
	t.Parallel()
	srv, err := start(t, natsd.Config{Dir: t.TempDir(), Port: -1, SyncInterval: -1, Users: []subject.User{{Name: subject.Admin, Publish: []string{">"}, Subscribe: []string{">"}}}})
	if err != nil {
		t.Fatal(err)
	}
	reconnected := make(chan struct{}, 1)
	nc := connect(t, srv.ClientURL(), nats.UserInfo(subject.Admin, srv.Password(subject.Admin).Reveal()), nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} }))
	js := jet(t, nc)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "x", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	srv.Shutdown()
	srv.Shutdown() // twice is harmless
	if _, err := start(t, srv.Config()); err != nil {
		t.Fatal(err)
	}
	<-reconnected
	stream, err := js.Stream(t.Context(), "X")
	if err != nil {
		t.Fatal(err)
	}
	if msg, err := stream.GetMsg(t.Context(), 1); err != nil || string(msg.Data) != "kept" {
		t.Errorf("GetMsg(1) = %v, %v, want kept", msg, err)
	}
}

func TestStartErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, cfg *natsd.Config)
		want    []string
	}{
		{"folder in use", func(t *testing.T, cfg *natsd.Config) {
			if _, err := start(t, *cfg); err != nil {
				t.Fatal(err)
			}
		}, []string{"in use by another process", "choose another folder"}},
		{"port in use", func(t *testing.T, cfg *natsd.Config) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			cfg.Port = l.Addr().(*net.TCPAddr).Port
		}, []string{"if another server is running", "choose another port"}},
		{"folder is a file", func(t *testing.T, cfg *natsd.Config) {
			cfg.Dir = filepath.Join(cfg.Dir, "file")
			if err := os.WriteFile(cfg.Dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"create the folder"}},
		{"damaged folder", func(t *testing.T, cfg *natsd.Config) {
			srv, err := start(t, *cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := jet(t, connect(t, "", srv.Options("")...)).CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err != nil {
				t.Fatal(err)
			}
			srv.Shutdown()
			found, err := filepath.Glob(filepath.Join(cfg.Dir, "jetstream", "*", "streams", "X", "meta.inf"))
			if err != nil || len(found) != 1 {
				t.Fatalf("meta.inf: %v, %v", found, err)
			}
			if err := os.WriteFile(found[0], []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"damaged", "streams X", "move the folder away"}},
		{"jetstream folder is a file", func(t *testing.T, cfg *natsd.Config) {
			if err := os.WriteFile(filepath.Join(cfg.Dir, "jetstream"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"move the folder away"}},
		{"no folder", func(_ *testing.T, cfg *natsd.Config) { cfg.Dir = "" }, []string{"a folder"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := natsd.Config{Dir: t.TempDir()}
			tc.prepare(t, &cfg)
			_, err := start(t, cfg)
			if err == nil {
				t.Fatal("Start = nil, want an error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start = %q, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestStartAfterFailureIsPossible(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := natsd.Start(ctx, natsd.Config{Dir: dir, Log: natstest.Log(t)}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start = %v, want %v", err, context.Canceled)
	}
	if _, err := start(t, natsd.Config{Dir: dir}); err != nil {
		t.Errorf("Start in the same folder = %v, want nil", err)
	}
}

// Streams of the account without users do not count as damage when users are turned on.
func TestTurningUsersOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv, err := start(t, natsd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jet(t, connect(t, "", srv.Options("")...)).CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	srv.Shutdown()
	if _, err := start(t, natsd.Config{Dir: dir, Users: subject.Users(natstest.Topology(t))}); err != nil {
		t.Errorf("Start with users = %v, want nil", err)
	}
}
