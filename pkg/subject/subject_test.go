package subject_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	var (
		ws      = id.Must[id.Workspace]("01890000-0000-7000-8000-000000000001")
		session = id.Must[id.Session]("01890000-0000-7000-8000-000000000002")
		run     = id.Must[id.Run]("01890000-0000-7000-8000-000000000003")
		doc     = id.Must[id.Document]("01890000-0000-7000-8000-000000000004")
		account = id.Must[id.Account]("01890000-0000-7000-8000-000000000005")
	)
	for _, tc := range []struct{ name, got, want string }{
		{"RunWork", subject.RunWork(7), "work.run.7"},
		{"Events", subject.Events(3, ws, session), "ev.03.01890000-0000-7000-8000-000000000001.01890000-0000-7000-8000-000000000002"},
		{"Live", subject.Live(12, ws, session), "live.12.01890000-0000-7000-8000-000000000001.01890000-0000-7000-8000-000000000002"},
		{"CtlRun", subject.CtlRun(run), "ctl.run.01890000-0000-7000-8000-000000000003"},
		{"ToolDone", subject.ToolDone(run), "ctl.tool.01890000-0000-7000-8000-000000000003"},
		{"ToolCancel", subject.ToolCancel(run), "ctl.cancel.01890000-0000-7000-8000-000000000003"},
		{"DocUpdates", subject.DocUpdates(ws, doc), "doc.01890000-0000-7000-8000-000000000001.01890000-0000-7000-8000-000000000004"},
		{"WorkspaceDocUpdates", subject.WorkspaceDocUpdates(ws), "doc.01890000-0000-7000-8000-000000000001.*"},
		{"CredState", subject.CredState(account.UUID), "cred.state.01890000-0000-7000-8000-000000000005"},
		{"CredAccounts", subject.CredAccounts(ws), "cred.accounts.01890000-0000-7000-8000-000000000001"},
		{"EventStream", subject.EventStream(4), "EV_04"},
		{"InboxPrefix", subject.InboxPrefix(subject.AgentRunner), "_INBOX_agent-runner"},
		{"PasswordVariable", subject.PasswordVariable(subject.ToolExecutor), "TOOL_EXECUTOR_NATS_PASSWORD"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.got != tc.want {
				t.Errorf("%s = %q, want %q", tc.name, tc.got, tc.want)
			}
		})
	}
	if w, s, ok := subject.SessionOf(subject.Events(1, ws, session)); w != ws || s != session || !ok {
		t.Errorf("SessionOf(Events) = %v, %v, %v, want %v, %v", w, s, ok, ws, session)
	}
	for _, bad := range []string{"", "ev", "ev.00." + ws.String(), subject.Live(1, ws, session), subject.Events(1, ws, session) + ".x", "ev.00.x." + session.String()} {
		if w, s, ok := subject.SessionOf(bad); ok {
			t.Errorf("SessionOf(%q) = %v, %v, want none", bad, w, s)
		}
	}
}

func TestToolWork(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "calendar_list", "work.tool.calendar_list"},
		{"all that is allowed", "aZ09_-", "work.tool.aZ09_-"},
		{"empty", "", "work.tool._"},
		{"dots and spaces", "mcp.search now", "work.tool.mcp_search_now"},
		{"wildcards", "*.>", "work.tool.___"},
		{"line break", "a\r\nPUB x", "work.tool.a__PUB_x"},
		{"more than bytes", "ü", "work.tool.__"},
		{"64", strings.Repeat("x", 64), "work.tool." + strings.Repeat("x", 64)},
		{"65", strings.Repeat("x", 65), "work.tool." + strings.Repeat("x", 64)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := subject.ToolWork(tc.in); got != tc.want {
				t.Errorf("ToolWork(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

func FuzzToolWork(f *testing.F) {
	f.Add("calendar_list")
	f.Add("a.b.>")
	f.Fuzz(func(t *testing.T, kind string) {
		got := subject.ToolWork(kind)
		last, ok := strings.CutPrefix(got, "work.tool.")
		if !ok || last == "" || len(last) > 64 || strings.ContainsAny(last, ". *>\t\r\n") {
			t.Errorf("ToolWork(%q) = %q, want one plain token", kind, got)
		}
	})
}

// The partition of a session is written into stored messages and found again by
// other services: it must never change.
func TestPartitionIsStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		session string
		four    int
		sixteen int
		shard   int
	}{
		{"00000000-0000-0000-0000-000000000000", 1, 5, 5},
		{"01890000-0000-7000-8000-000000000002", 1, 13, 5},
		{"ffffffff-ffff-ffff-ffff-ffffffffffff", 1, 5, 5},
	} {
		s := id.Session{UUID: uuid.MustParse(tc.session)}
		if four, sixteen, shard := subject.Partition(s, 4), subject.Partition(s, 16), subject.Shard(s); four != tc.four || sixteen != tc.sixteen || shard != tc.shard {
			t.Errorf("%s: Partition 4 = %d, 16 = %d, Shard = %d, want %d, %d, %d", tc.session, four, sixteen, shard, tc.four, tc.sixteen, tc.shard)
		}
	}
}

func TestPartitionSpreads(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(i int) id.Session{
		"new ids": func(int) id.Session { return id.New[id.Session]() },
		"counted ids": func(i int) id.Session {
			var u uuid.UUID
			binary.BigEndian.PutUint64(u[8:], uint64(i))
			return id.Session{UUID: u}
		},
	} {
		const n, sessions = 16, 16_000
		var count [n]int
		for i := range sessions {
			count[subject.Partition(next(i), n)]++
		}
		for p, c := range count {
			if c < sessions/n*8/10 || c > sessions/n*12/10 {
				t.Errorf("%s: partition %d has %d of %d sessions, want about %d", name, p, c, sessions, sessions/n)
			}
		}
	}
	if got := subject.Partition(id.New[id.Session](), 0); got != 0 {
		t.Errorf("Partition(s, 0) = %d, want 0", got)
	}
}

func TestKind(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"work.run.3":     "work.run",
		"work.tool.x":    "work.tool",
		"ev.00.a.b":      "ev",
		"ctl.cancel.r":   "ctl.cancel",
		"cred.state.a.b": "cred.state",
		"doc.a.b":        "doc",
		"work":           "work",
		"":               "",
	} {
		if got := subject.Kind(in); got != want {
			t.Errorf("Kind(%q) = %q, want %q", in, got, want)
		}
	}
}
