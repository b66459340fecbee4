// Package subject names everything that is said on the bus: every subject,
// every stream and consumer (topology.go) and who may say what (users.go).
// Nothing else in the program spells a subject by hand.
//
//	work.run.<shard>                 stream RUNS, work queue         a run wants a runner
//	work.tool.<kind>                 stream TOOLS, work queue        a tool call wants an executor
//	ev.<p>.<workspace>.<session>     streams EV_00 … EV_n            the run log, hot tail only
//	live.<p>.<workspace>.<session>   core, republished from ev       what gateways listen to
//	ctl.run.<run>                    core, a nudge                   the run's inbox has something new
//	ctl.tool.<run>                   core, a nudge                   an outcome of a tool call is recorded
//	ctl.cancel.<run>                 core, a nudge                   stop the tool calls of this run
//	cred.state.<instance>            core, a nudge                   what a broker learned of accounts
//	cred.accounts.<workspace>        core, a nudge                   accounts or settings were changed
//	doc.<workspace>.<document>       core                            committed document updates
//	aw.<workspace>.<document>        core                            cursors and presence
//
// A nudge may get lost: the truth is a row in Postgres, and whoever listens
// also looks there from time to time.
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

// Shards is the number of subjects that runs are spread over. It is fixed: the
// consumer takes them all, the shards are there to be told apart later.
const Shards = 8

// Shard returns the shard, below Shards, of the work of a session.
func Shard(s id.Session) int { return hash(s, Shards) }

// Partition returns the partition, below n, of a session's events. It is
// FNV-1a over the id's 16 bytes, so that every service finds the same one.
func Partition(s id.Session, n int) int { return hash(s, n) }

func hash(s id.Session, n int) int {
	h := fnv.New64a()
	_, _ = h.Write(s.UUID[:]) // a hash never refuses
	return int(h.Sum64() % uint64(max(n, 1)))
}

// RunWork returns the subject that runs of a shard are queued on.
func RunWork(shard int) string { return fmt.Sprintf("work.run.%d", shard) }

// ToolWork returns the subject that calls of a tool are queued on. Kinds are
// [a-zA-Z0-9_-]{1,64}; any other byte becomes _ and what is too long is cut,
// so that a name from outside cannot leave its place in the subject. The
// subject only routes: the exact name is in the message.
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

// SessionOf returns whose events are on a subject of the run log.
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

// CtlRun returns the subject that whoever runs the run listens to.
func CtlRun(r id.Run) string { return "ctl.run." + r.String() }

// ToolDone returns the subject on which the tool-executor tells the runner of
// a run that an outcome is recorded.
func ToolDone(r id.Run) string { return "ctl.tool." + r.String() }

// ToolCancel returns the subject on which the runner asks all executors to let
// go of a run's calls.
func ToolCancel(r id.Run) string { return "ctl.cancel." + r.String() }

// CredState returns the subject on which a broker tells the others what it learned
// of accounts.
func CredState(instance uuid.UUID) string { return "cred.state." + instance.String() }

// CredAccounts returns the subject on which brokers tell each other that accounts of a
// workspace, or settings of its pools, were changed.
func CredAccounts(ws id.Workspace) string { return "cred.accounts." + ws.String() }

// DocUpdates returns the subject of a document's committed updates.
func DocUpdates(ws id.Workspace, d id.Document) string {
	return fmt.Sprintf("doc.%s.%s", ws, d)
}

// WorkspaceDocUpdates matches DocUpdates of all documents of a workspace.
func WorkspaceDocUpdates(ws id.Workspace) string { return fmt.Sprintf("doc.%s.*", ws) }

// Kind returns the first words of a subject, those that say what it carries
// ("work.run", "ev", "ctl.tool"). There are few of them: they name metrics and spans.
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
