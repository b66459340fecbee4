// Package run is the durable side of the agent loop: which run is whose, what of
// it is committed, and how it ended. All of it is rows in Postgres; the loop
// (package loop) holds nothing that these rows do not.
//
// # States
//
//	queued → running → done | failed | cancelled
//	   └────────────────────────────→ cancelled
//
// A session has at most one running run (a unique index says so); later ones are
// queued in the order of their ordinals, and the end of one wakes the next.
//
// # Claims
//
// A runner owns a run by its claim: Claim adds one to runs.epoch and sets a lease.
// Every later write names that epoch in the same transaction (commit); when it is
// no longer the newest, the write fails with ErrFenced and the runner stops at
// once: another one has the run. A lease only says when others may try; the
// epoch decides.
//
// # Turns
//
// Which run is claimed next is decided by the rows, by workspace in turn (Next): the waiting
// workspace with the fewest running runs, and of these the one served least recently; within
// it the runs that lost their runner, then the oldest. A message of the work queue only says
// that a run waits. It names the one it was sent for, but the runner that has a free slot for
// it claims whichever is next.
//
// A workspace has Config.PerWorkspace runs in work at most. Claims of one workspace stand in
// line for that (an advisory lock, taken after the session's). A message that finds only runs
// of workspaces at their limit is acked; in return the end of a run wakes a runner for another
// waiting run of its workspace, in the same transaction (Finish, conversation's Delete). So for
// each run that waits without a message there is one of its workspace in work, whose end
// sends one. A run that is lost leaves its workspace's limit, and the sweeper wakes a runner.
//
// A message may be claimed by the transaction that stores it (Taking) where this process has
// a free slot. The slots are shared with the work queue, whose consumer waits for one while
// there are messages; a slot that is free means that none waits here.
//
// What one workspace has of idle slots it gives back within a step: Renew tells runs to yield
// when another workspace has waited for a while and has fewer, and the loop parks them at
// their next step border.
//
// # What is committed when
//
//	Claim          user message joins; events 0 (user_message) and 1 (run_start) are announced
//	CommitAnswer   the model's message, its planned tool calls, usage
//	CommitResults  the tool message, in call order
//	Finish         the last answer, the run's end, its terminal events (outbox), a waiting run's wake-up (outbox)
//
// Each commit sets runs.last_event to the number of the event that announces it,
// which is published right after. All events with lower numbers were acknowledged
// by the log before. So after a crash, the log holds either everything up to the
// last commit or lacks a tail that can be made again from the rows (package loop
// does); what the log holds beyond it belongs to a step that is void.
//
// Lock order is session, then run. If it dies here: nothing, or all of one of the
// commits above.
package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// State is where a run stands.
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

// Ended reports whether nothing will happen to the run any more.
func (s State) Ended() bool { return s == Done || s == Failed || s == Cancelled }

var (
	// ErrFenced means that the claim is no longer the newest, or that the run has
	// ended or is gone: whoever gets it stops and writes nothing more.
	ErrFenced = errors.New("another runner has this run")
	// ErrNotClaimable means that there is nothing to do: the run has ended, is
	// gone, is being worked on, or is not the next one of its session.
	ErrNotClaimable = errors.New("nothing to do for this run")
	// ErrTooEarly means that the end of the run before this one is not announced yet.
	ErrTooEarly = errors.New("the end of the run before is not announced yet")
)

// Usage is tokens as the provider counted them.
type Usage struct {
	Input, CacheRead, CacheWrite, Output, Reasoning int64
	// Estimated: the provider did not report the final count of some of them.
	Estimated bool
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
	Epoch            int64
	Fruitless        int // claims since something was committed, this one included
	LastEvent        int64
	Steps            int
	InputTokens      int64
	CacheReadTokens  int64
	CacheWriteTokens int64
	OutputTokens     int64
	ReasoningTokens  int64
	Estimated        bool // the tokens, in part
	Text             string
	FinishReason     string
	ErrorMessage     string
	ErrorCode        string
	Deadline         *time.Time
	CreatedAt        time.Time
	StartedAt        *time.Time
	EndedAt          *time.Time
}

// Columns are the columns of a Run, for queries that collect one by name.
const Columns = `id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, tools,
	timezone, collect_tool_stats, epoch, fruitless, last_event, steps, input_tokens, cache_read_tokens, cache_write_tokens,
	output_tokens, reasoning_tokens, estimated, text, finish_reason, error_message, error_code, deadline, created_at, started_at, ended_at`

// Simulator is the provider whose answers are made up by a script. It speaks Anthropic's
// protocol, and those of others as simulator-openai and simulator-openrouter.
const Simulator = "simulator"

// IsSimulator reports whether a provider is the simulator, in any protocol. No account can
// have such a name.
func IsSimulator(provider string) bool {
	return provider == Simulator || strings.HasPrefix(provider, Simulator+"-")
}

// Simulated reports whether no model answers the run.
func (r *Run) Simulated() bool { return IsSimulator(r.Provider) }

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

// Actor returns on whose behalf the run acts.
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
	// PerWorkspace is how many runs of one workspace runners may have at a time; 0 for no
	// limit. Those that lost their runner are claimed beyond it.
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
	// SteeredBy is who sent a message that joined a run; nil for the others.
	SteeredBy *id.Member
}

// MessageColumns are the columns of a Message, for queries of messages that collect by
// name.
const MessageColumns = `id, run_id, step_index, role, content, raw_dialect, raw, interrupted, tokens_in, tokens_out, model, created_at,
	CASE role WHEN 'user' THEN (
		SELECT i.created_by FROM run_inbox i WHERE i.run_id = messages.run_id AND i.message_id = messages.id) END AS steered_by`
