package execute

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// job is one active call. Unless a comment says otherwise, its fields belong to the goroutine
// of Handle or Sweep, and to that of the tool while it runs.
type job struct {
	ledger.Ref
	msg    *toolv1.Call
	run    id.Run
	actor  identity.Actor
	entry  tool.Entry
	known  bool // entry is that of the call's tool
	effect toolv1.Effect
	args   json.RawMessage
	former []string // executors that had begun with it before
	cancel context.CancelCauseFunc
	begun  atomic.Bool // this executor has begun to run the tool
	// progress is the call's Progress.
	progress func(tool.Progress)

	attempt   int       // of this executor's claim; 0 before it; guarded by Executor.mu
	confirmed time.Time // when the claim was last known to be valid; guarded by Executor.mu
	abandoned bool      // the tool has not returned and keeps the slot; guarded by Executor.mu
}

// newJob decodes a call. It trusts the call's identity, because the bus lets only
// agent-runner publish calls and agent-runner has verified it.
func newJob(msg *toolv1.Call) (*job, error) {
	j := &job{msg: msg, effect: toolv1.Effect_EFFECT_PURE} // an unknown tool does nothing
	var errs [5]error
	j.Key, errs[0] = id.Parse[id.Operation](msg.GetKey())
	j.Workspace, errs[1] = id.Parse[id.Workspace](msg.GetWorkspaceId())
	j.run, errs[2] = id.Parse[id.Run](msg.GetRunId())
	j.actor.Session, errs[3] = id.Parse[id.Session](msg.GetSessionId())
	j.actor.Member, errs[4] = id.Parse[id.Member](msg.GetMemberId())
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	role, err := identity.ParseRole(msg.GetRole())
	if err != nil {
		return nil, err
	}
	if len(msg.GetToolCallId()) > maxID || len(msg.GetToolName()) > maxID {
		return nil, fmt.Errorf("call id and tool name may have %d bytes at most", maxID)
	}
	j.actor.Workspace, j.actor.Role, j.actor.Run = j.Workspace, role, j.run
	return j, nil
}

// find looks up the call's tool.
func (j *job) find(ctx context.Context, catalogue *tool.Catalogue) (err error) {
	j.entry, j.known, err = catalogue.Lookup(ctx, j.Workspace, j.msg.GetToolName())
	if j.known {
		j.effect = j.entry.Spec.Effect
	}
	return err
}

// maxID bounds ids and names that come from a model and are stored.
const maxID = 512

// row returns the call for the ledger.
func (j *job) row() (ledger.Call, error) {
	work, err := proto.Marshal(j.msg)
	if err != nil {
		return ledger.Call{}, fmt.Errorf("encode the call: %w", err)
	}
	return ledger.Call{
		Ref: j.Ref, Run: j.run, Session: j.actor.Session,
		ToolCallID: writable(j.msg.GetToolCallId()), ToolName: writable(j.msg.GetToolName()), Effect: j.effect,
		Work: work, Request: request(j.msg),
	}, nil
}

// request returns a digest of what a call asks for. It ignores the arguments' whitespace and
// the fields that may differ when the call is dispatched again.
func request(msg *toolv1.Call) []byte {
	h := sha256.New()
	args := []byte(msg.GetArgsJson())
	var compact bytes.Buffer
	if json.Compact(&compact, args) == nil {
		args = compact.Bytes()
	}
	for _, part := range [][]byte{[]byte(msg.GetRunId()), []byte(msg.GetToolName()), args} {
		h.Write([]byte(strconv.Itoa(len(part)) + ":")) // never fails
		h.Write(part)
	}
	return h.Sum(nil)
}

// writable replaces NUL, which Postgres refuses and a model's names may contain.
func writable(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

func (j *job) call() tool.Call {
	return tool.Call{Key: j.Key, Args: j.args, Timezone: j.msg.GetTimezone(), OutputCap: j.entry.Spec.OutputCap, Progress: j.progress}
}

// deadline returns the call's deadline, or the zero time if it has none.
func (j *job) deadline() time.Time {
	if !j.msg.GetDeadline().IsValid() {
		return time.Time{}
	}
	return j.msg.GetDeadline().AsTime()
}

// repeated reports whether an earlier claim may have run the tool. It is valid after the claim.
func (j *job) repeated() bool { return j.attempt > 1 }

// withoutEffect reports whether the call cannot have taken effect.
func (j *job) withoutEffect() bool {
	return j.effect == toolv1.Effect_EFFECT_PURE || !j.repeated() && !j.begun.Load()
}

// repeatable reports whether running the tool twice has the effect of running it once.
func (j *job) repeatable() bool {
	switch j.effect {
	case toolv1.Effect_EFFECT_PURE, toolv1.Effect_EFFECT_SAME_TX, toolv1.Effect_EFFECT_KEYED:
		return true
	}
	return false
}

func (j *job) summary() string {
	s, ok := j.entry.Tool.(tool.Summarizer)
	if !ok || len(j.args) == 0 {
		return ""
	}
	return clip(s.Summary(j.args), 200)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
