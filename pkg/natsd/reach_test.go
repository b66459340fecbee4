package natsd_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// foreign lists subjects with a meaning. Those that a user may not publish to must stay out
// of its reach, whatever it tries.
func foreign(users []subject.User) []string {
	all := []string{
		"work.run.0", "work.tool.x", "ev.00.w.s", "live.00.w.s", "ctl.run.r", "ctl.tool.r", "ctl.cancel.r",
		"doc.w.d", "aw.w.d", "cred.state.i", "cred.accounts.w",
		"$JS.ACK.RUNS.runners.1.1.1.1.0", "$JS.ACK.TOOLS.executors.1.1.1.1.0",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO",
	}
	for _, u := range users {
		all = append(all, subject.InboxPrefix(u.Name)+".x")
	}
	for _, verb := range []string{
		"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.X", "STREAM.CREATE.RUNS", "SERVER.REMOVE", "META.LEADER.STEPDOWN", "ACCOUNT.PURGE.SIGNALBOX",
	} {
		all = append(all, "$JS.API."+verb)
	}
	for _, stream := range []string{"RUNS", "TOOLS", "EV_00"} {
		for _, verb := range []string{
			"STREAM.INFO", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.SNAPSHOT", "STREAM.RESTORE", "STREAM.PEER.REMOVE",
			"STREAM.LEADER.STEPDOWN", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.NAMES", "CONSUMER.LIST",
		} {
			all = append(all, "$JS.API."+verb+"."+stream)
		}
		all = append(all, "$JS.API.CONSUMER.CREATE."+stream+".x", "$JS.API.CONSUMER.DURABLE.CREATE."+stream+".x", "$JS.API.CONSUMER.CREATE."+stream+".x.work.run.0")
	}
	for _, consumer := range []string{"RUNS.runners", "TOOLS.executors"} {
		for _, verb := range []string{"INFO", "DELETE", "PAUSE", "UNPIN", "RESET", "LEADER.STEPDOWN", "MSG.NEXT"} {
			all = append(all, "$JS.API.CONSUMER."+verb+"."+consumer)
		}
	}
	return all
}

// planted is the body of stored messages: sent to the API, it would be a request.
const planted = `{"name":"X","subjects":["x"],"seq":1}`

// testReach lets a user send to all subjects of others, directly, as a request, and as the
// reply and trace destination of everything that it may send, and looks for any effect.
func testReach(t *testing.T, dial func(t *testing.T, user string) *nats.Conn, u subject.User) {
	t.Helper()
	users := subject.Users(natstest.Topology(t))
	admin, runner := jet(t, dial(t, subject.Admin)), jet(t, dial(t, subject.AgentRunner))
	for _, subj := range []string{"work.run.0", "work.tool.x", "ev.00.w.s"} {
		for range 3 {
			if _, err := runner.Publish(t.Context(), subj, []byte(planted)); err != nil {
				t.Fatal(err)
			}
		}
	}
	heard := eavesdrop(t, dial, users, u)
	before := inventory(t, admin, u)

	nc := dial(t, u.Name)
	own := subject.InboxPrefix(u.Name) + ".own"
	answers, err := nc.SubscribeSync(own)
	if err != nil {
		t.Fatal(err)
	}
	send := func(m *nats.Msg) {
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range foreign(users) {
		if may(u, target) {
			continue
		}
		for _, body := range []string{"", planted} {
			send(&nats.Msg{Subject: target, Data: []byte(body)})
			send(&nats.Msg{Subject: target, Reply: own, Data: []byte(body)})
			for _, allowed := range literals(u) {
				send(&nats.Msg{Subject: allowed, Reply: target, Data: []byte(body)})
				send(&nats.Msg{Subject: allowed, Reply: own, Header: nats.Header{"Nats-Trace-Dest": {target}, "Nats-Trace-Only": {"1"}}, Data: []byte(body)})
			}
		}
	}
	// Replies come in the order of the requests: when these come, all have come.
	for _, allowed := range literals(u) {
		if strings.HasPrefix(allowed, "$JS.API.STREAM.INFO") || strings.HasPrefix(allowed, "$JS.API.DIRECT") || strings.HasPrefix(allowed, "ev.") {
			if _, err := nc.Request(allowed, []byte(`{"seq":1}`), 30*time.Second); err != nil {
				t.Errorf("%s requests %s: %v", u.Name, allowed, err)
			}
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := answers.NextMsg(50 * time.Millisecond)
		if err != nil {
			break
		}
		if strings.HasPrefix(m.Subject, "$SYS") {
			t.Errorf("%s got a reply from the system: %s", u.Name, m.Data)
		}
	}
	if diff := cmp.Diff(before, inventory(t, admin, u)); diff != "" {
		t.Errorf("%s changed streams or consumers (-before +after):\n%s", u.Name, diff)
	}
	for _, h := range heard() {
		t.Errorf("%s was heard by %s", u.Name, h)
	}
	closeConn(nc)
}

// may reports whether a user may publish to subj itself, or receives it anyway: messages to
// its own account's subscribers do no harm.
func may(u subject.User, subj string) bool {
	return slices.ContainsFunc(u.Publish, func(p string) bool { return matches(p, subj) }) || strings.HasPrefix(subj, subject.InboxPrefix(u.Name)+".")
}

func matches(pattern, subj string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subj, ".")
	for i, token := range p {
		if token == ">" {
			return len(s) > i
		}
		if i >= len(s) || token != "*" && token != s[i] {
			return false
		}
	}
	return len(p) == len(s)
}

// literals are subjects that a user may publish to, one for each pattern.
func literals(u subject.User) []string {
	var out []string
	for _, p := range u.Publish {
		switch p {
		case subject.AllEvents:
			p = "ev.00.w.s"
		case "$JS.ACK.RUNS.runners.>", "$JS.ACK.TOOLS.executors.>":
			continue // acknowledges the user's own messages
		}
		out = append(out, strings.NewReplacer(">", "0", "*", "0").Replace(p))
	}
	return out
}

// eavesdrop subscribes every other user to everything that it may receive. The result has
// the messages that u was not allowed to send.
func eavesdrop(t *testing.T, dial func(t *testing.T, user string) *nats.Conn, users []subject.User, u subject.User) func() []string {
	t.Helper()
	var (
		mu    sync.Mutex
		heard []string
		conns []*nats.Conn
	)
	for _, other := range users {
		if other.Name == u.Name {
			continue
		}
		nc := dial(t, other.Name)
		conns = append(conns, nc)
		for _, subj := range other.Subscribe {
			if strings.HasPrefix(subj, "_INBOX") {
				subj = subject.InboxPrefix(other.Name) + ".x" // not the replies to its own requests
			}
			_, err := nc.Subscribe(subj, func(m *nats.Msg) {
				republished := strings.HasPrefix(m.Subject, "live.") && m.Header.Get(jetstream.SequenceHeader) != "" && may(u, "ev.00.w.s")
				if may(u, m.Subject) || republished {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if len(heard) < 10 {
					heard = append(heard, fmt.Sprintf("%s on %s: %.80s", other.Name, m.Subject, m.Data))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	return func() []string {
		for _, nc := range conns {
			if err := nc.Flush(); err != nil {
				t.Error(err)
			}
			closeConn(nc)
		}
		mu.Lock()
		defer mu.Unlock()
		return heard
	}
}

// inventory lists all streams and consumers, without the state that u may change.
func inventory(t *testing.T, admin jetstream.JetStream, u subject.User) []string {
	t.Helper()
	var out []string
	note := func(v ...any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	names := admin.StreamNames(t.Context())
	for name := range names.Name() {
		s, err := admin.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info := s.CachedInfo()
		note(name, info.Config, info.Created, info.State.FirstSeq, info.State.NumDeleted)
		if len(info.Config.Subjects) > 0 && !may(u, strings.Replace(info.Config.Subjects[0], ">", "x", 1)) {
			note(name, info.State.LastSeq, info.State.Msgs)
		}
		consumers := s.ListConsumers(t.Context())
		for c := range consumers.Info() {
			note(name, c.Name, c.Config, c.Created, c.Paused, c.AckFloor)
			if !may(u, "$JS.API.CONSUMER.MSG.NEXT."+name+"."+c.Name) {
				note(name, c.Name, c.Delivered.Consumer, c.NumAckPending, c.NumWaiting)
			}
		}
		if err := consumers.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := names.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}
