package documentsync_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
)

func TestMain(m *testing.M) {
	// The Postgres test server lives as long as the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch.func1"))
}

// world is what instances of the service share: a database, a bus and a signing gateway.
type world struct {
	db      *pgtest.Database
	nats    *natsd.Server
	gateway identity.Key
}

func newWorld(t testing.TB) *world {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return &world{db: pgtest.New(t, documentsync.Migrations()), nats: natstest.New(t), gateway: key}
}

// instance is a running service.
type instance struct {
	w    *world
	url  string
	stop func() // stops it and waits for its end
}

func (w *world) start(t testing.TB, cfg documentsync.Config) *instance {
	t.Helper()
	return w.startOn(t, cfg, natstest.Bus(t, w.nats, subject.DocumentSync))
}

func (w *world) startOn(t testing.TB, cfg documentsync.Config, b *bus.Bus) *instance {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier(subject.DocumentSync, map[string]string{subject.Gateway: w.gateway.Public()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := documentsync.New(t.Context(), cfg, documentsync.Deps{
		Log: natstest.Log(t), DB: w.db.Open(t, documentsync.Migrations()), Bus: b, Listener: l, Verifier: verifier,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	i := &instance{w: w, url: "http://" + l.Addr().String()}
	i.stop = func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
			ended <- nil // for a second stop
		case <-time.After(15 * time.Second):
			t.Error("Run has not returned 15 s after its context ended")
		}
	}
	t.Cleanup(i.stop)
	return i
}

// client returns a client of the instance; the context of each call holds the actor.
func (i *instance) client(t testing.TB) documentv1connect.DocumentServiceClient {
	t.Helper()
	options, err := rpc.Client{Signer: identity.NewSigner(subject.Gateway, i.w.gateway), Audience: subject.DocumentSync}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.NewHTTPClient(nil)
	t.Cleanup(h.CloseIdleConnections)
	return documentv1connect.NewDocumentServiceClient(h, i.url, options...)
}

// actor returns an editor in a new workspace, as an agent's run.
func actor() identity.Actor {
	return identity.Actor{
		Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor,
		Run: id.New[id.Run](), Session: id.New[id.Session](),
	}
}

// as returns a context with an actor, which outlives the test for its parallel subtests.
func as(t testing.TB, a identity.Actor) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(identity.With(t.Context(), a), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
