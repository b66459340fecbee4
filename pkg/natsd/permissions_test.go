package natsd_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// The embedded server and the files in deploy/nats grant the same permissions.
func TestPermissionsEmbedded(t *testing.T) {
	t.Parallel()
	srv, err := start(t, natsd.Config{Dir: t.TempDir(), Port: -1, Log: slog.New(slog.DiscardHandler), Users: subject.Users(natstest.Topology(t))})
	if err != nil {
		t.Fatal(err)
	}
	testPermissions(t, func(t *testing.T, user string) *nats.Conn {
		return connect(t, srv.ClientURL(), nats.UserInfo(user, srv.Password(user).Reveal()), nats.CustomInboxPrefix(subject.InboxPrefix(user)))
	})
}

//nolint:paralleltest // the passwords are in the environment
func TestPermissionsDeployed(t *testing.T) {
	password := func(user string) string { return "secret-" + user }
	for _, u := range subject.Users(natstest.Topology(t)) {
		t.Setenv(subject.PasswordVariable(u.Name), password(u.Name))
	}
	opts, err := server.ProcessConfigFile(filepath.Join("..", "..", "deploy", "nats", "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if opts.MaxPayload != subject.MaxMessage {
		t.Errorf("max_payload = %d, want %d", opts.MaxPayload, subject.MaxMessage)
	}
	if opts.SyncInterval != 100*time.Millisecond || opts.HTTPPort == 0 || opts.StoreDir == "" {
		t.Errorf("sync_interval = %v, http port = %d, store_dir = %q, want 100ms and both others", opts.SyncInterval, opts.HTTPPort, opts.StoreDir)
	}
	var reserved int64
	top, err := subject.NewTopology(subject.Options{Partitions: 16})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range top.Streams {
		reserved += s.Config.MaxBytes
	}
	if opts.JetStreamMaxStore < reserved {
		t.Errorf("max_file_store = %d, want room for the %d that streams reserve", opts.JetStreamMaxStore, reserved)
	}
	opts.StoreDir, opts.Host, opts.Port, opts.HTTPPort, opts.NoSigs = t.TempDir(), "127.0.0.1", -1, 0, true
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not become ready")
	}
	testPermissions(t, func(t *testing.T, user string) *nats.Conn {
		return connect(t, srv.ClientURL(), nats.UserInfo(user, password(user)), nats.CustomInboxPrefix(subject.InboxPrefix(user)))
	})
}

func testPermissions(t *testing.T, dial func(t *testing.T, user string) *nats.Conn) {
	admin := jet(t, dial(t, subject.Admin))
	for _, s := range natstest.Topology(t).Streams {
		stream, err := admin.CreateStream(t.Context(), s.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.Consumers {
			if _, err := stream.CreateConsumer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		verb, subj string
		may        map[string]bool // everybody else may not
	}{
		{"pub", "work.run.0", only(subject.AgentRunner)},
		{"pub", "work.tool.web_search", only(subject.AgentRunner)},
		{"pub", "ev.00.w.s", only(subject.AgentRunner)},
		{"pub", "live.00.w.s", only()},
		{"sub", "live.00.w.s", only(subject.Gateway)},
		{"sub", "ev.00.w.s", only()},
		{"sub", "work.run.0", only()},
		{"pub", "ctl.run.r", only(subject.AgentRunner)},
		{"sub", "ctl.run.*", only(subject.AgentRunner)},
		{"pub", "ctl.tool.r", only(subject.AgentRunner, subject.ToolExecutor)},
		{"sub", "ctl.tool.*", only(subject.AgentRunner)},
		{"pub", "ctl.cancel.r", only(subject.AgentRunner)},
		{"sub", "ctl.cancel.*", only(subject.ToolExecutor)},
		{"pub", "doc.w.d", only(subject.DocumentSync)},
		{"sub", "doc.w.d", only(subject.DocumentSync)},
		{"pub", "aw.w.d", only(subject.DocumentSync)},
		{"sub", "aw.>", only(subject.DocumentSync)},
		{"pub", "cred.state.w.a", only(subject.CredentialBroker)},
		{"sub", "cred.state.>", only(subject.CredentialBroker)},

		{"pub", "$JS.API.STREAM.CREATE.X", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.CREATE.RUNS", only(subject.Admin, subject.AgentRunner)},
		{"pub", "$JS.API.STREAM.CREATE.TOOLS", only(subject.Admin, subject.ToolExecutor)},
		{"pub", "$JS.API.STREAM.CREATE.EV_00", only(subject.Admin, subject.AgentRunner)},
		{"pub", "$JS.API.STREAM.UPDATE.RUNS", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.DELETE.X", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.PURGE.X", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.MSG.DELETE.X", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.MSG.GET.RUNS", only(subject.Admin)},
		{"pub", "$JS.API.CONSUMER.CREATE.RUNS.x.work.run.>", only(subject.Admin)},
		{"pub", "$JS.API.CONSUMER.DURABLE.CREATE.RUNS.x", only(subject.Admin)},
		{"pub", "$JS.API.CONSUMER.DELETE.RUNS.x", only(subject.Admin)},
		{"pub", "$JS.API.DIRECT.GET.EV_00", only(subject.Admin, subject.Gateway, subject.AgentRunner)},
		{"pub", "$JS.API.DIRECT.GET.RUNS", only(subject.Admin)},
		{"pub", "$JS.API.STREAM.INFO.EV_00", only(subject.Admin, subject.Gateway, subject.AgentRunner)},
		{"pub", "$JS.API.STREAM.INFO.RUNS", only(subject.Admin)},
		{"pub", "$JS.API.CONSUMER.MSG.NEXT.RUNS.runners", only(subject.Admin, subject.AgentRunner)},
		{"pub", "$JS.API.CONSUMER.INFO.RUNS.runners", only(subject.Admin, subject.AgentRunner)},
		{"pub", "$JS.ACK.RUNS.runners.1.1.1.1.0", only(subject.AgentRunner)},
		{"pub", "$JS.API.CONSUMER.MSG.NEXT.TOOLS.executors", only(subject.Admin, subject.ToolExecutor)},
		{"pub", "$JS.ACK.TOOLS.executors.1.1.1.1.0", only(subject.ToolExecutor)},
		{"pub", "$SYS.REQ.SERVER.PING", only()},
		{"sub", "$SYS.>", only()},
		{"sub", ">", only()},

		{"sub", "_INBOX.>", only()},
		{"sub", "_INBOX_gateway.x", only(subject.Gateway)},
		{"sub", "_INBOX_agent-runner.x", only(subject.AgentRunner)},
		{"sub", "_INBOX_admin.x", only(subject.Admin)},
		{"sub", "*.>", only()},
	} {
		for _, u := range subject.Users(natstest.Topology(t)) {
			nc := dial(t, u.Name)
			if got := allowed(t, nc, tc.verb, tc.subj); got != tc.may[u.Name] {
				t.Errorf("%s may %s %s = %v, want %v", u.Name, tc.verb, tc.subj, got, tc.may[u.Name])
			}
			closeConn(nc)
		}
	}
	testTheft(t, dial)
	for _, u := range subject.Users(natstest.Topology(t)) {
		if u.Name != subject.Admin {
			testReach(t, dial, u)
		}
	}
}

func only(users ...string) map[string]bool {
	m := map[string]bool{}
	for _, u := range users {
		m[u] = true
	}
	return m
}

// allowed tries an operation. A request that follows it is answered after any refusal.
func allowed(t *testing.T, nc *nats.Conn, verb, subj string) bool {
	t.Helper()
	var err error
	if verb == "pub" {
		err = nc.Publish(subj, nil)
	} else {
		_, err = nc.SubscribeSync(subj)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return nc.LastError() == nil
}

// testTheft tries whole operations, not single subjects.
func testTheft(t *testing.T, dial func(t *testing.T, user string) *nats.Conn) {
	runner, executor := jet(t, dial(t, subject.AgentRunner)), jet(t, dial(t, subject.ToolExecutor))
	if _, err := runner.Publish(t.Context(), "work.run.0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	quick := func(js jetstream.JetStream) error {
		c, err := js.Consumer(t.Context(), subject.Runs, subject.Runners)
		if err != nil {
			return err
		}
		_, err = c.Next(jetstream.FetchMaxWait(10 * time.Second))
		return err
	}
	short, err := jetstream.New(executor.Conn(), jetstream.WithDefaultTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := quick(short); err == nil {
		t.Error("tool-executor consumed from RUNS, want an error")
	}
	if err := short.DeleteStream(t.Context(), subject.Runs); err == nil {
		t.Error("tool-executor deleted RUNS, want an error")
	}
	if err := quick(runner); err != nil {
		t.Errorf("agent-runner consumes from RUNS = %v, want nil", err)
	}
}
