// Package subject defines everything on the bus: every subject, every stream and consumer
// (topology.go), and who may publish and subscribe to what (users.go). No other code spells a
// subject.
//
//	work.run.<shard>                 stream RUNS, work queue         a run needs a runner
//	work.tool.<kind>                 stream TOOLS, work queue        a tool call needs an executor
//	ev.<p>.<workspace>.<session>     streams EV_00 … EV_n            the run log, hot tail only
//	live.<p>.<workspace>.<session>   core, republished from ev       gateways subscribe to it
//	ctl.run.<run>                    core, a nudge                   the run's inbox has something new
//	ctl.tool.<run>                   core, a nudge                   an outcome of a tool call is recorded, or its progress
//	ctl.cancel.<run>                 core, a nudge                   stop the tool calls of this run
//	cred.state.<instance>            core, a nudge                   a broker's observations of accounts
//	cred.accounts.<workspace>        core, a nudge                   accounts or settings were changed
//	doc.<workspace>.<document>       core                            committed document updates
//	aw.<workspace>.<document>        core                            cursors and presence
//
// A nudge may get lost: the truth is a row in Postgres, which subscribers also read from time
// to time.
package subject

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
)

// Wildcards that services subscribe to or consume.
const (
	AllRuns         = "work.run.>"
	AllTools        = "work.tool.>"
	AllEvents       = "ev.>"
	AllLive         = "live.>"
	AllCtlRuns      = "ctl.run.*"
	AllToolDone     = "ctl.tool.*"
	AllToolCancels  = "ctl.cancel.*"
	AllCredStates   = "cred.state.>"
	AllCredAccounts = "cred.accounts.>"
	AllDocUpdates   = "doc.>"
	AllAwareness    = "aw.>"
)

// Shards is the number of subjects that runs are spread over. It is fixed. So far one
// consumer takes them all.
const Shards = 8

// Shard returns the shard of a session's work, below Shards.
func Shard(s id.Session) int { return hash(s, Shards) }

// Partition returns the partition of a session's events, below n: FNV-1a over the id's 16
// bytes, the same in every service.
func Partition(s id.Session, n int) int { return hash(s, n) }

func hash(s id.Session, n int) int {
	h := fnv.New64a()
	_, _ = h.Write(s.UUID[:]) // a hash never fails
	return int(h.Sum64() % uint64(max(n, 1)))
}

// RunWork returns the subject that runs of a shard are queued on.
func RunWork(shard int) string { return fmt.Sprintf("work.run.%d", shard) }

// ToolWork returns the subject that calls of a tool are queued on. A kind is
// [a-zA-Z0-9_-]{1,64}: any other byte becomes _ and a long name is cut, so that a name from
// outside cannot add tokens to the subject. The subject only routes; the message has the name.
func ToolWork(kind string) string {
	if len(kind) > 64 {
		kind = kind[:64]
	}
	b := []byte(kind)
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "work.tool._"
	}
	return "work.tool." + string(b)
}

// Events returns the subject of a session's run log in partition p.
func Events(p int, ws id.Workspace, s id.Session) string {
	return fmt.Sprintf("ev.%02d.%s.%s", p, ws, s)
}

// SessionOf returns the workspace and session of a run log subject.
func SessionOf(events string) (ws id.Workspace, s id.Session, ok bool) {
	tokens := strings.Split(events, ".")
	if len(tokens) != 4 || tokens[0] != "ev" {
		return ws, s, false
	}
	ws, err1 := id.Parse[id.Workspace](tokens[2])
	s, err2 := id.Parse[id.Session](tokens[3])
	return ws, s, err1 == nil && err2 == nil
}

// Live returns the subject that a session's events are republished on.
func Live(p int, ws id.Workspace, s id.Session) string {
	return fmt.Sprintf("live.%02d.%s.%s", p, ws, s)
}

// CtlRun returns the subject of nudges to a run's runner.
func CtlRun(r id.Run) string { return "ctl.run." + r.String() }

// ToolDone returns the subject on which the tool-executor tells a run's runner that an
// outcome is recorded, and how far a call is.
func ToolDone(r id.Run) string { return "ctl.tool." + r.String() }

// ToolCancel returns the subject on which the runner asks all executors to cancel a run's
// calls.
func ToolCancel(r id.Run) string { return "ctl.cancel." + r.String() }

// Swept returns the subject on which the replicas of a service tell each other that one has looked
// for work that lost its process.
func Swept(service string) string { return "ctl.swept." + service }

// CredState returns the subject on which a broker shares its observations of accounts.
func CredState(instance uuid.UUID) string { return "cred.state." + instance.String() }

// CredAccounts returns the subject on which brokers announce changes of a workspace's
// accounts or pool settings.
func CredAccounts(ws id.Workspace) string { return "cred.accounts." + ws.String() }

// DocUpdates returns the subject of a document's committed updates.
func DocUpdates(ws id.Workspace, d id.Document) string {
	return fmt.Sprintf("doc.%s.%s", ws, d)
}

// WorkspaceDocUpdates matches DocUpdates of all documents of a workspace.
func WorkspaceDocUpdates(ws id.Workspace) string { return fmt.Sprintf("doc.%s.*", ws) }

// Kind returns the first tokens of a subject, which tell what it carries ("work.run", "ev",
// "ctl.tool"). There are few kinds: they name metrics and spans.
func Kind(subj string) string {
	first, rest, _ := strings.Cut(subj, ".")
	switch first {
	case "work", "ctl", "cred":
		second, _, _ := strings.Cut(rest, ".")
		if second == "" {
			return first
		}
		return first + "." + second
	}
	return first
}
