package toolexecutor_test

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	"signalbox.dev/services/simulator/apis"
	toolexecutor "signalbox.dev/services/tool-executor"
	"signalbox.dev/services/tool-executor/internal/brokertest"
	"signalbox.dev/services/tool-executor/internal/doctest"
)

func TestMain(m *testing.M) {
	// The test server of Postgres lives as long as the process does.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch.func1"))
}

// world is what executors share: a database, a bus, a document service, and a
// runner that gives them work and hears what they say.
type world struct {
	db       *pgtest.Database
	nats     *natsd.Server
	docs     *doctest.Service
	docsURL  string
	broker   *brokertest.Broker
	brokerAt string
	key      identity.Key // of tool-executor
	runner   identity.Key
	bus      *bus.Bus // the runner's
	outcomes chan *toolv1.Outcome
	actor    identity.Actor
	tools    []toolexecutor.Tool // beside the built-in ones
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		db: pgtest.New(t, toolexecutor.Migrations()), nats: natstest.New(t), docs: doctest.New(),
		key: newKey(t), runner: newKey(t), outcomes: make(chan *toolv1.Outcome, 1024),
		actor: identity.Actor{
			Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session](),
		},
	}
	w.docsURL = w.docs.Serve(t, w.key)
	w.broker, w.brokerAt = brokertest.Start(t, apis.New(apis.Config{}), w.key)
	w.bus = natstest.Bus(t, w.nats, subject.AgentRunner)
	_, err := w.bus.Subscribe(subject.AllToolDone, func(_ context.Context, m *bus.Message) {
		o, err := bus.Decode[*toolv1.Outcome](m)
		if err != nil {
			t.Errorf("on %s: %v", m.Subject, err)
			return
		}
		w.outcomes <- o
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.bus.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func newKey(t testing.TB) identity.Key {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// instance is a running service.
type instance struct {
	w    *world
	url  string
	stop func() // asks it to end and waits for that
}

func (w *world) start(t testing.TB, cfg toolexecutor.Config) *instance {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier(subject.ToolExecutor, map[string]string{subject.AgentRunner: w.runner.Public()})
	if err != nil {
		t.Fatal(err)
	}
	cfg.DocumentSyncURL, cfg.BrokerURL = w.docsURL, w.brokerAt
	client := rpc.NewHTTPClient(nil)
	s, err := toolexecutor.New(cfg, toolexecutor.Deps{
		Log: natstest.Log(t), DB: w.db.Open(t, toolexecutor.Migrations()), Bus: natstest.Bus(t, w.nats, subject.ToolExecutor), Listener: l,
		Verifier: verifier, Signer: identity.NewSigner(subject.ToolExecutor, w.key), HTTP: client, Tools: w.tools,
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
			ended <- nil // a second stop finds it ended
		case <-time.After(30 * time.Second):
			t.Error("Run has not ended 30 s after its context")
		}
		client.CloseIdleConnections()
	}
	t.Cleanup(i.stop)
	return i
}

// client returns a client of the instance, as agent-runner's.
func (i *instance) client(t testing.TB) toolv1connect.ToolServiceClient {
	t.Helper()
	options, err := rpc.Client{Signer: identity.NewSigner(subject.AgentRunner, i.w.runner), Audience: subject.ToolExecutor}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.NewHTTPClient(nil)
	t.Cleanup(h.CloseIdleConnections)
	return toolv1connect.NewToolServiceClient(h, i.url, options...)
}

// call returns a fresh call of a tool.
func (w *world) call(t testing.TB, name string, args any) *toolv1.Call {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return &toolv1.Call{
		Key: id.New[id.Operation]().String(), WorkspaceId: w.actor.Workspace.String(), SessionId: w.actor.Session.String(), RunId: w.actor.Run.String(),
		MemberId: w.actor.Member.String(), Role: w.actor.Role.String(), ToolCallId: "toolu_1", ToolName: name, ArgsJson: string(b),
		Deadline: timestamppb.New(time.Now().Add(time.Minute)),
	}
}

// publish gives a call to the executors; message tells deliveries apart.
func (w *world) publish(t testing.TB, c *toolv1.Call, message string) {
	t.Helper()
	if _, err := w.bus.Publish(t.Context(), subject.ToolWork(c.GetToolName()), c.GetKey()+message, c); err != nil {
		t.Fatal(err)
	}
}

// next returns what the runner hears next.
func (w *world) next(t testing.TB) *toolv1.Outcome {
	t.Helper()
	select {
	case o := <-w.outcomes:
		return o
	case <-time.After(20 * time.Second):
		t.Fatal("no outcome in 20 s")
		return nil
	}
}

// of returns what the runner hears next of a call.
func (w *world) of(t testing.TB, c *toolv1.Call) *toolv1.Outcome {
	t.Helper()
	for {
		if o := w.next(t); o.GetKey() == c.GetKey() {
			return o
		}
	}
}

// do runs a call through the bus.
func (w *world) do(t testing.TB, name string, args any) *toolv1.Outcome {
	t.Helper()
	c := w.call(t, name, args)
	w.publish(t, c, "")
	return w.of(t, c)
}

// fields returns the fields of a result.
func fields(t testing.TB, o *toolv1.Outcome) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(o.GetResultJson()), &out); err != nil {
		t.Fatalf("result %q: %v", o.GetResultJson(), err)
	}
	return out
}
