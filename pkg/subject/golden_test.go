package subject_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/subject"
)

var update = flag.Bool("update", false, "write the golden files and deploy/nats/accounts.conf")

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./pkg/subject -update", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what the code says (-file +code); if that is meant: go test ./pkg/subject -update\n%s", path, diff)
	}
}

func topology(t *testing.T, o subject.Options) subject.Topology {
	t.Helper()
	top, err := subject.NewTopology(o)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// production is what deploy/nats is written for.
var production = subject.Options{Partitions: 16, Replicas: 3}

func TestTopologyGolden(t *testing.T) {
	t.Parallel()
	top := topology(t, subject.Options{})
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(top); err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("testdata", "topology.json"), got.Bytes())
}

const accountsHead = `# Who may say what on the bus. Written from pkg/subject/users.go by
#   go test ./pkg/subject -update
# and compared with it by every test run: do not edit.
#
# Passwords come from the environment of the server, one variable for each user.
# The server reads their values as configuration: use letters and digits, and
# begin with a letter, such as p$(openssl rand -hex 16).

`

func TestAccountsGolden(t *testing.T) {
	t.Parallel()
	users := subject.Users(topology(t, production))
	got := subject.AccountsConf(users, func(user string) string { return "$" + subject.PasswordVariable(user) })
	golden(t, filepath.Join("..", "..", "deploy", "nats", "accounts.conf"), append([]byte(accountsHead), got...))
}

func TestTopologyOptions(t *testing.T) {
	t.Parallel()
	big := topology(t, production)
	if got := len(big.Streams); got != 18 || big.Partitions != 16 {
		t.Errorf("production has %d streams and %d partitions, want 18 and 16", got, big.Partitions)
	}
	for _, s := range big.Streams {
		if s.Config.Replicas != 3 {
			t.Errorf("stream %s has %d replicas, want 3", s.Config.Name, s.Config.Replicas)
		}
	}
	for _, o := range []subject.Options{{Partitions: -1}, {Partitions: 101}, {Replicas: -1}, {Replicas: 6}} {
		if _, err := subject.NewTopology(o); err == nil {
			t.Errorf("NewTopology(%+v) = nil error, want one", o)
		}
	}
}

// What a user may do with four partitions it may do with sixteen: the deployed
// accounts file serves any number up to that of production.
func TestUsersOfFewerPartitionsAreContained(t *testing.T) {
	t.Parallel()
	all := subject.Users(topology(t, production))
	for i, u := range subject.Users(topology(t, subject.Options{})) {
		for _, s := range u.Publish {
			if !slices.Contains(all[i].Publish, s) {
				t.Errorf("%s may publish %s with 4 partitions and not with 16", u.Name, s)
			}
		}
	}
}

// An owner makes its own streams where the server has lost them, and nothing else.
func TestNoServiceAdministersStreams(t *testing.T) {
	t.Parallel()
	makes := map[string][]string{
		subject.AgentRunner:  {"$JS.API.STREAM.CREATE.RUNS", "$JS.API.CONSUMER.CREATE.RUNS.runners.work.run.>"},
		subject.ToolExecutor: {"$JS.API.STREAM.CREATE.TOOLS", "$JS.API.CONSUMER.CREATE.TOOLS.executors.work.tool.>"},
	}
	for _, u := range subject.Users(topology(t, production)) {
		for _, s := range u.Subscribe {
			if strings.HasPrefix(s, "_INBOX") && s != subject.InboxPrefix(u.Name)+".>" || s == ">" {
				t.Errorf("%s may subscribe to %s", u.Name, s)
			}
		}
		if u.Name == subject.Admin {
			continue
		}
		for _, s := range u.Publish {
			if slices.Contains(makes[u.Name], s) || strings.HasPrefix(s, "$JS.API.STREAM.CREATE.EV_") && u.Name == subject.AgentRunner {
				continue
			}
			for _, bad := range []string{"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "CONSUMER.CREATE", "CONSUMER.DELETE", "CONSUMER.DURABLE", "$JS.API.>", "$JS.>", "_INBOX"} {
				if s == ">" || strings.Contains(s, bad) {
					t.Errorf("%s may publish to %s", u.Name, s)
				}
			}
		}
	}
}

func TestAccountsConfQuotes(t *testing.T) {
	t.Parallel()
	got := subject.AccountsConf([]subject.User{{Name: "a", Publish: []string{"x"}, Subscribe: []string{"y"}}}, func(string) string { return `"p"` })
	if !bytes.Contains(got, []byte(`password: "p"`)) || !bytes.Contains(got, []byte(`user: "a"`)) {
		t.Errorf("AccountsConf = %s, want quoted user and password", got)
	}
}
