// Package run is the durable state of the agent loop: which runner works on a run, how much of
// the run is committed, and how it ended. All of this is in Postgres rows, from which the loop
// (package loop) can continue after a crash.
//
// # States
//
//	queued → running → done | failed | cancelled
//	   │       ↑ ↓
//	   │     waiting
//	   └────────────────────────────→ cancelled
//
// A session has at most one running or waiting run, which a unique index enforces. Later runs
// are queued in the order of their ordinals, and the end of one wakes the next.
//
// # Claims
//
// A runner owns a run by its claim: Claim increments runs.epoch and sets a lease. Every
// later write checks that epoch in its own transaction (commit). If a newer claim exists,
// the write fails with ErrFenced and the runner stops at once. The lease only says when
// others may try to claim; the epoch decides who owns the run.
//
// # Fair scheduling
//
// Next chooses the run to claim next, fairly among workspaces: it takes the waiting workspace
// with the fewest running runs and, if there are several, the one served least recently.
// Within the workspace, runs that lost their runner come first, then the oldest queued one.
// A message of the work queue only says that some run waits. It names the run that it was sent
// for, but the runner that receives it claims whichever run is next.
//
// A workspace has at most Config.PerWorkspace running runs. Claims in one workspace are
// serialized for this by an advisory lock, which is taken after the session's lock. A
// message that finds only runs of workspaces at their limit is acked. In return, the end of
// a run wakes a runner for another waiting run of its workspace in the same transaction
// (Finish, and Delete in package conversation), and so does the parking of a run that waits for
// an answer. So if a run waits without a message, its workspace has a running run whose end
// sends one. A run that lost its runner does not count towards the limit, and the sweeper wakes
// a runner for it.
//
// The transaction that stores a message may claim its run (PreClaim) if this process has a
// free slot. The work queue's consumer shares these slots and blocks for one while there
// are messages, so a free slot means that no message waits here.
//
// A workspace that uses idle slots of others gives them back within a step: when another
// workspace with fewer runs has waited for a while, Renew tells runs to yield, and the loop
// parks them at their next step border.
//
// # Approvals
//
// A call that needs a person's approval is planned: its row exists, and it must not be
// dispatched. When the step's other calls have ended, Wait parks the run: it is waiting, and has
// neither a runner nor a lease, so it costs nothing and survives every restart. An answer
// (Decide) makes the call dispatched or gives it its outcome, and makes the run claimable, in one
// transaction (Resume): the run is running with a new epoch, no runner, and a lease that has expired.
// Like a queued run, it needs a slot of its workspace. A missing answer becomes a refusal
// (ExpireApprovals), and a stop resumes the run too, so that its next claim, which needs no slot, ends
// it. Other planned calls stay planned, and the claim parks the run again.
//
// If an answer or a stop comes before Wait, Wait commits nothing and the runner looks again. If
// it comes after, the run waits and is resumed. So no answer is lost. An approval is for the
// arguments whose hash the row has (Call.MayRun).
//
// A call with an unknown outcome that a person or a rule has approved becomes planned again,
// with the question whether it happened. If a person lets it run again, it gets a new key,
// because executors answer the old key with the outcome that they have recorded.
//
// A call of a client's tool (package clienttool) is planned in the same way, from the commit of
// the answer on, with the question what the result is. Whatever a client sends becomes the
// outcome.
//
// A runner of the previous version that takes over a running run dispatches planned calls.
// Their deadline has passed then, so executors do not run them.
//
// # What is committed when
//
//	Claim          the user message joins the conversation; announced by events 0 (user_message) and 1 (run_start)
//	CommitAnswer   the model's message, its planned tool calls, usage
//	Wait           the outcomes so far, and that the run waits, its waiting event (outbox)
//	CommitResults  the tool message, in call order
//	CompleteStep   the model's message or, of a step that compacts the conversation, the summary
//	Finish         the last answer, the run's end, its terminal events (outbox), a waiting run's wake-up (outbox)
//
// Each commit sets runs.last_event to the number of the event that announces it. That event
// is published right after the commit; the log has acknowledged all events with lower
// numbers before it. So after a crash the log either has everything up to the last commit or
// lacks a tail, which package loop rebuilds from the rows. Later events in the log belong to a
// step that is void.
//
// The lock order is session, then run. A crash leaves each of the commits above either
// complete or not begun.
package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// State is the state of a run.
type State string

// The states.
const (
	Queued    State = "queued"
	Running   State = "running"
	Waiting   State = "waiting"
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// Proto returns the state as other services see it.
func (s State) Proto() agentv1.RunState {
	return agentv1.RunState(agentv1.RunState_value["RUN_STATE_"+strings.ToUpper(string(s))])
}

var (
	// ErrFenced means that the claim is no longer the newest, or that the run has ended or
	// was deleted. The runner must stop and write nothing more.
	ErrFenced = errors.New("another runner has this run")
	// ErrNotClaimable means that the run has ended, was deleted, has a runner, or is not the
	// next one of its session or workspace.
	ErrNotClaimable = errors.New("the run cannot be claimed")
	// ErrTooEarly means that the end of the session's previous run is still in the outbox.
	ErrTooEarly = errors.New("the end of the previous run is not published yet")
)

// Usage is tokens as the provider counted them.
type Usage struct {
	Input, CacheRead, CacheWrite, Output, Reasoning int64
	// Estimated is true if the provider did not report the final count of some of them.
	Estimated bool
}

// Proto returns the usage as other services see it.
func (u Usage) Proto() *agentv1.Usage {
	return &agentv1.Usage{
		InputTokens: u.Input, CacheReadTokens: u.CacheRead, CacheWriteTokens: u.CacheWrite,
		OutputTokens: u.Output, ReasoningTokens: u.Reasoning, Estimated: u.Estimated,
	}
}

// Add returns the sum.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		u.Input + v.Input, u.CacheRead + v.CacheRead, u.CacheWrite + v.CacheWrite, u.Output + v.Output, u.Reasoning + v.Reasoning,
		u.Estimated || v.Estimated,
	}
}

// Run is a row of runs.
type Run struct {
	ID               id.Run
	Workspace        id.Workspace `db:"workspace_id"`
	Session          id.Session   `db:"session_id"`
	Ordinal          int64
	State            State
	UserMessage      id.Message `db:"user_message_id"`
	CreatedBy        id.Member
	Role             string
	Provider         string
	Model            string
	Tools            []string // nil: the session's choice
	Timezone         string
	CollectToolStats bool
	ResponseSchema   []byte // JSON Schema of the final answer; nil for free text
	Epoch            int64
	Fruitless        int // claims since the last commit, the current one included
	LastEvent        int64
	Steps            int
	InputTokens      int64
	CacheReadTokens  int64
	CacheWriteTokens int64
	OutputTokens     int64
	ReasoningTokens  int64
	Estimated        bool // some of the token counts are estimates
	Text             string
	FinishReason     string
	FinishDetail     string
	ErrorMessage     string
	ErrorCode        string
	ErrorRetryAt     *time.Time
	Deadline         *time.Time
	CreatedAt        time.Time
	StartedAt        *time.Time
	EndedAt          *time.Time
}

// Columns are the columns of a Run, for RowToStructByName.
const Columns = `id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, tools,
	timezone, collect_tool_stats, response_schema, epoch, fruitless, last_event, steps, input_tokens, cache_read_tokens, cache_write_tokens,
	output_tokens, reasoning_tokens, estimated, text, finish_reason, finish_detail, error_message, error_code, error_retry_at, deadline, created_at, started_at, ended_at`

// Simulator is the provider whose answers come from a script. It speaks Anthropic's
// protocol. As simulator-openai and simulator-openrouter it speaks those protocols.
const Simulator = "simulator"

// IsSimulator reports whether a provider is the simulator, in any protocol. The names are
// reserved: no account can have them.
func IsSimulator(provider string) bool {
	return provider == Simulator || strings.HasPrefix(provider, Simulator+"-")
}

// Simulated reports whether the simulator answers the run.
func (r *Run) Simulated() bool { return IsSimulator(r.Provider) }

// Proto returns the run as other services see it.
func (r *Run) Proto() *agentv1.Run {
	out := &agentv1.Run{
		Id: r.ID.String(), SessionId: r.Session.String(), Ordinal: r.Ordinal,
		State:         r.State.Proto(),
		UserMessageId: r.UserMessage.String(), CreatedBy: r.CreatedBy.String(), Provider: r.Provider, Model: r.Model,
		Steps: int32(r.Steps), FinishReason: r.FinishReason, FinishDetail: r.FinishDetail, ErrorMessage: r.ErrorMessage, ErrorCode: r.ErrorCode, Text: r.Text,
		CollectToolStats: r.CollectToolStats, Simulated: r.Simulated(), CreatedAt: timestamppb.New(r.CreatedAt),
		Usage: r.Usage().Proto(),
	}
	if r.StartedAt != nil {
		out.StartedAt = timestamppb.New(*r.StartedAt)
	}
	if r.ErrorRetryAt != nil {
		out.ErrorRetryAt = timestamppb.New(*r.ErrorRetryAt)
	}
	if r.EndedAt != nil {
		out.EndedAt = timestamppb.New(*r.EndedAt)
	}
	if r.LastEvent >= 0 {
		out.LastEvent = &r.LastEvent
	}
	return out
}

// Usage returns the tokens of all committed steps.
func (r *Run) Usage() Usage {
	return Usage{r.InputTokens, r.CacheReadTokens, r.CacheWriteTokens, r.OutputTokens, r.ReasoningTokens, r.Estimated}
}

func (r *Run) add(u Usage) {
	r.InputTokens += u.Input
	r.CacheReadTokens += u.CacheRead
	r.CacheWriteTokens += u.CacheWrite
	r.OutputTokens += u.Output
	r.ReasoningTokens += u.Reasoning
	r.Estimated = r.Estimated || u.Estimated
}

// Actor returns the identity that the run acts for.
func (r *Run) Actor() (identity.Actor, error) {
	role, err := identity.ParseRole(r.Role)
	if err != nil {
		return identity.Actor{}, fmt.Errorf("run %s: %w", r.ID, err)
	}
	return identity.Actor{Workspace: r.Workspace, Member: r.CreatedBy, Role: role, Run: r.ID, Session: r.Session}, nil
}

// Store reads and writes runs in the name of one runner.
type Store struct {
	db     *pg.DB
	out    *outbox.Outbox
	runner string
	cfg    Config
	logs   []string // subjects of the run log, up to the workspace
}

// Config are the limits of claims.
type Config struct {
	// Lease is how long a claim holds without Renew.
	Lease time.Duration
	// WallTime bounds a run from its first claim to its end.
	WallTime time.Duration
	// Partitions of the run log.
	Partitions int
	// PerWorkspace is the most running runs of one workspace; 0 means no limit. Runs that
	// lost their runner are claimed beyond it.
	PerWorkspace int
}

// NewStore returns a store; runner names this process in claims.
func NewStore(db *pg.DB, out *outbox.Outbox, runner string, cfg Config) *Store {
	if cfg.PerWorkspace <= 0 {
		cfg.PerWorkspace = math.MaxInt32
	}
	s := &Store{db: db, out: out, runner: runner, cfg: cfg}
	for p := range cfg.Partitions {
		s.logs = append(s.logs, strings.TrimSuffix(subject.Events(p, id.Workspace{}, id.Session{}), id.Workspace{}.String()+"."+id.Session{}.String()))
	}
	return s
}

// Message is a stored entry of the conversation.
type Message struct {
	ID          id.Message
	Run         id.Run `db:"run_id"`
	StepIndex   *int
	Role        string
	Content     json.RawMessage
	RawDialect  *string
	Raw         []byte
	Interrupted bool
	TokensIn    *int64
	TokensOut   *int64
	Model       string
	CreatedAt   time.Time
	// SteeredBy is the sender of a steering message; nil for other messages.
	SteeredBy *id.Member
}

// MessageColumns are the columns of a Message, for RowToStructByName.
const MessageColumns = `id, run_id, step_index, role, content, raw_dialect, raw, interrupted, tokens_in, tokens_out, model, created_at,
	CASE role WHEN 'user' THEN (
		SELECT i.created_by FROM run_inbox i WHERE i.run_id = messages.run_id AND i.message_id = messages.id) END AS steered_by`
