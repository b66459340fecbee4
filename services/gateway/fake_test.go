package gateway_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

const partitions = 4

// fakeRunner is a small agent-runner: it keeps sessions and runs in memory and
// publishes the events that a test makes its runs say.
type fakeRunner struct {
	agentv1connect.UnimplementedConversationServiceHandler
	agentv1connect.UnimplementedRunServiceHandler
	bus *bus.Bus

	mu       sync.Mutex // guards what follows
	sessions map[string]*fakeSession
	runs     map[string]*fakeRun
	keys     map[string]string // idempotency key → run or session
	last     time.Time
	script   func(*fakeRun) // run by each new run on a goroutine of its own
	scripts  sync.WaitGroup
	before   func()   // called before Submit returns
	behind   int      // number of events that the record lacks
	streams  int64    // number of times that the log was lost
	listed   int      // number of pages read from the record
	results  []string // of client tools
	// submitted are the requests to Submit, in order.
	submitted []*agentv1.SubmitRequest
	stopped   []string // runs that were cancelled
	older     bool     // it is of an older version, which ignores the fields that it does not know
}

type fakeSession struct {
	*agentv1.Session
	request  *agentv1.CreateSessionRequest
	messages []*agentv1.Message
	runs     []*fakeRun
	log      []*agentv1.LoggedEvent // all published events, in the order of the log
}

// fakeRun is a run of the fake.
type fakeRun struct {
	r       *fakeRunner
	session *fakeSession
	*agentv1.Run
	message *agentv1.Message
	asked   *agentv1.Approval // a question about the call c1
	epoch   int64
	next    int64
	calls   []*agentv1.ToolCall
	prefix  string // of message ids, so that a test can publish twice
}

func newFakeRunner(b *bus.Bus) *fakeRunner {
	return &fakeRunner{bus: b, behind: 2, sessions: map[string]*fakeSession{}, runs: map[string]*fakeRun{}, keys: map[string]string{}}
}

// now returns distinct microseconds, because created_at of sessions must be unique.
func (r *fakeRunner) now() *timestamppb.Timestamp {
	t := time.Now().Truncate(time.Microsecond)
	if !t.After(r.last) {
		t = r.last.Add(time.Microsecond)
	}
	r.last = t
	return timestamppb.New(t)
}

// may checks the caller's role, as the real service does.
func may(ctx context.Context, least identity.Role) (identity.Actor, error) {
	return identity.Require(ctx, least)
}

func (r *fakeRunner) session(ctx context.Context, session string, least identity.Role) (*fakeSession, error) {
	a, err := may(ctx, least)
	if err != nil {
		return nil, err
	}
	s := r.sessions[session]
	if s == nil || s.GetWorkspaceId() != a.Workspace.String() {
		return nil, fault.New(fault.NotFound, "no such session")
	}
	return s, nil
}

func (r *fakeRunner) CreateSession(ctx context.Context, req *agentv1.CreateSessionRequest) (*agentv1.CreateSessionResponse, error) {
	a, err := may(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := a.Workspace.String() + a.Member.String() + req.GetIdempotencyKey()
	if old := r.keys[key]; old != "" && req.GetIdempotencyKey() != "" {
		return &agentv1.CreateSessionResponse{Session: proto.CloneOf(r.sessions[old].Session)}, nil
	}
	s := &agentv1.Session{
		Id: uuid.NewString(), WorkspaceId: a.Workspace.String(), CreatedBy: a.Member.String(), Title: req.GetTitle(),
		Model: cmp.Or(req.GetModel(), "claude-sonnet-4-5-20250929"), Provider: cmp.Or(req.GetProvider(), "anthropic"),
		SystemPrompt: req.GetSystemPrompt(), Preset: cmp.Or(req.GetPreset(), "workspace"), Tools: req.GetTools(), MaxSteps: req.GetMaxSteps(),
		CreatedAt: r.now(), ClientTools: toolNames(req.GetClientTools()), Archived: req.GetArchived(),
	}
	s.UpdatedAt = s.CreatedAt
	r.sessions[s.Id] = &fakeSession{Session: s, request: req}
	r.keys[key] = s.Id
	return &agentv1.CreateSessionResponse{Session: proto.CloneOf(s)}, nil
}

func (r *fakeRunner) ListSessions(ctx context.Context, req *agentv1.ListSessionsRequest) (*agentv1.ListSessionsResponse, error) {
	a, err := may(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.older {
		req.ByUpdate, req.PageToken = false, ""
	}
	if req.GetByUpdate() && req.GetBefore() != nil {
		return nil, fault.New(fault.Invalid, "before must be empty")
	}
	var found []*agentv1.Session
	for _, s := range r.sessions {
		if s.GetWorkspaceId() == a.Workspace.String() && s.GetArchived() == req.GetArchived() && strings.Contains(s.GetTitle(), req.GetQuery()) &&
			(req.GetState() == "" || req.GetState() == s.GetState()) && (req.GetBefore() == nil || s.GetCreatedAt().AsTime().Before(req.GetBefore().AsTime())) {
			found = append(found, proto.CloneOf(s.Session))
		}
	}
	at := (*agentv1.Session).GetCreatedAt
	if req.GetByUpdate() {
		at = (*agentv1.Session).GetUpdatedAt
	}
	slices.SortFunc(found, func(a, b *agentv1.Session) int { return at(b).AsTime().Compare(at(a).AsTime()) })
	if i := slices.IndexFunc(found, func(s *agentv1.Session) bool { return s.GetId() == req.GetPageToken() }); i >= 0 {
		found = found[i+1:]
	}
	limit := int(cmp.Or(req.GetLimit(), 20))
	res := &agentv1.ListSessionsResponse{Sessions: found[:min(limit, len(found))], More: len(found) > limit}
	if res.GetMore() && req.GetByUpdate() {
		res.NextPageToken = found[limit-1].GetId()
	}
	return res, nil
}

func (r *fakeRunner) GetSession(ctx context.Context, req *agentv1.GetSessionRequest) (*agentv1.GetSessionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	session := req.GetId()
	if a, err := may(ctx, identity.Viewer); err == nil && req.GetIdempotencyKey() != "" {
		session = r.keys[a.Workspace.String()+a.Member.String()+req.GetIdempotencyKey()]
	}
	s, err := r.session(ctx, session, identity.Viewer)
	if err != nil {
		return nil, err
	}
	if r.older {
		req.RunId = ""
	}
	if run := req.GetRunId(); run != "" && r.runs[run] == nil {
		return nil, fault.New(fault.NotFound, "no such run")
	}
	res := &agentv1.GetSessionResponse{Session: proto.CloneOf(s.Session), RunId: req.GetRunId()}
	if !req.GetWithoutMessages() {
		end := len(s.messages)
		if b := int(req.GetBefore()); b > 0 {
			end = min(end, b-1)
		}
		start := 0
		if n := int(req.GetLimit()); n > 0 && n < end {
			start = end - n
			res.Earlier = int64(start + 1)
		}
		for _, m := range s.messages[start:end] {
			if run := req.GetRunId(); run == "" || run == m.GetRunId() {
				res.Messages = append(res.Messages, proto.CloneOf(m))
			}
		}
		for _, run := range s.runs {
			if run.GetState() > agentv1.RunState_RUN_STATE_WAITING && run.GetFinishReason() != "stop" {
				res.StoppedRuns = append(res.StoppedRuns, proto.CloneOf(run.Run))
			}
		}
	}
	for _, run := range s.runs {
		if run.LastEvent != nil {
			res.LastEvent = &agentv1.EventPosition{RunOrdinal: run.GetOrdinal(), Number: run.GetLastEvent()}
		}
		if res.ActiveRun == nil && run.GetState() <= agentv1.RunState_RUN_STATE_WAITING {
			res.ActiveRun = proto.CloneOf(run.Run)
		}
	}
	return res, nil
}

func (r *fakeRunner) UpdateSession(ctx context.Context, req *agentv1.UpdateSessionRequest) (*agentv1.UpdateSessionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	if req.Title != nil {
		s.Title = req.GetTitle()
	}
	if req.Archived != nil {
		s.Archived = req.GetArchived()
	}
	if req.Model != nil {
		s.Model = req.GetModel()
	}
	if req.SystemPrompt != nil {
		s.SystemPrompt = req.GetSystemPrompt()
	}
	if req.Tools != nil || req.GetResetTools() {
		s.Tools = req.Tools
	}
	if req.ClientTools != nil {
		s.ClientTools = toolNames(req.ClientTools)
	}
	return &agentv1.UpdateSessionResponse{Session: proto.CloneOf(s.Session)}, nil
}

func toolNames(in *agentv1.ClientTools) (names []string) {
	for _, t := range in.GetTools() {
		if t.GetInputSchemaJson() != "" {
			names = append(names, t.GetName())
		}
	}
	return names
}

// SendToolResult knows the call c1, and answers with what was sent.
func (r *fakeRunner) SendToolResult(ctx context.Context, req *agentv1.SendToolResultRequest) (*agentv1.SendToolResultResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.session(ctx, req.GetSessionId(), identity.Editor); err != nil {
		return nil, err
	}
	if req.GetToolCallId() != "c1" {
		return nil, fault.New(fault.NotFound, "no such call")
	}
	if req.GetOutputJson() == `"late"` {
		return nil, fault.Coded(fault.Conflict, "RESULT_EXPIRED", "no client has sent the result in time")
	}
	r.results = append(r.results, strings.TrimSpace(req.GetToolCallId()+" "+req.GetOutputJson()+req.GetError()+" "+req.GetRunId()+stepOf(req)))
	result := req.GetOutputJson()
	if req.GetError() != "" {
		result = "!" + req.GetError()
	}
	return &agentv1.SendToolResultResponse{RunId: noone, ToolCall: &agentv1.ToolCall{ToolCallId: "c1", Outcome: &toolv1.Outcome{ResultJson: result}}}, nil
}

func stepOf(req *agentv1.SendToolResultRequest) string {
	if req.StepIndex == nil {
		return ""
	}
	return fmt.Sprintf(" step %d", req.GetStepIndex())
}

// sent returns the results of client tools, in order.
func (r *fakeRunner) sent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.results, ", ")
}

// imported returns what a session was created with, as text.
func (r *fakeRunner) imported(session string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	req := r.sessions[session].request
	text := req.GetSystemPrompt()
	for _, m := range req.GetHistory() {
		text += " " + m.GetRole() + " " + m.GetContentJson()
	}
	if req.GetArchived() {
		text += " archived"
	}
	return text
}

// newest returns the id of the run that was submitted last.
func (r *fakeRunner) newest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last *fakeRun
	for _, run := range r.runs {
		if last == nil || run.GetCreatedAt().AsTime().After(last.GetCreatedAt().AsTime()) {
			last = run
		}
	}
	return last.GetId()
}

func (r *fakeRunner) run(runID string) *fakeRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[runID]
}

// wasStopped reports whether a run was cancelled.
func (r *fakeRunner) wasStopped(run string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.stopped, run)
}

func (r *fakeRunner) DeleteSession(ctx context.Context, req *agentv1.DeleteSessionRequest) (*agentv1.DeleteSessionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	for _, run := range s.runs {
		delete(r.runs, run.GetId())
	}
	delete(r.sessions, req.GetId())
	return &agentv1.DeleteSessionResponse{}, nil
}

func (r *fakeRunner) CompactSession(ctx context.Context, req *agentv1.CompactSessionRequest) (*agentv1.CompactSessionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.session(ctx, req.GetId(), identity.Editor); err != nil {
		return nil, err
	}
	return &agentv1.CompactSessionResponse{}, nil
}

// has reports whether a session has the message, if one is named.
func (r *fakeRunner) has(s *fakeSession, of *agentv1.MessageRef) bool {
	switch by := of.GetBy().(type) {
	case *agentv1.MessageRef_MessageId:
		return slices.ContainsFunc(s.messages, func(m *agentv1.Message) bool { return m.GetId() == by.MessageId })
	case *agentv1.MessageRef_IdempotencyKey:
		return r.keys[s.GetId()+by.IdempotencyKey] != ""
	}
	return true
}

func (r *fakeRunner) Submit(ctx context.Context, req *agentv1.SubmitRequest) (*agentv1.SubmitResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	sender, err := may(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	r.submitted = append(r.submitted, proto.CloneOf(req))
	if !r.has(s, req.GetEdit().GetOf()) || !r.has(s, req.GetRegenerate().GetOf()) {
		return nil, fault.New(fault.NotFound, "this session has no such message")
	}
	if old := r.runs[r.keys[s.GetId()+req.GetIdempotencyKey()]]; old != nil && req.GetIdempotencyKey() != "" {
		return &agentv1.SubmitResponse{Run: proto.CloneOf(old.Run), MessageId: old.message.GetId()}, nil
	}
	var active *fakeRun
	for _, run := range s.runs {
		if run.GetState() <= agentv1.RunState_RUN_STATE_WAITING {
			active = run
		}
	}
	m := &agentv1.Message{Id: uuid.NewString(), SessionId: s.GetId(), Role: "user", ContentJson: cmp.Or(req.GetContentJson(), req.GetEdit().GetContentJson(), `""`), CreatedAt: r.now(), CreatedBy: sender.Member.String()}
	if active != nil && req.GetMode() == agentv1.SubmitMode_SUBMIT_MODE_REJECT {
		return nil, fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run of this session is active")
	}
	if active != nil && req.GetMode() == agentv1.SubmitMode_SUBMIT_MODE_STEER {
		m.RunId = active.GetId()
		s.messages = append(s.messages, m)
		return &agentv1.SubmitResponse{Run: proto.CloneOf(active.Run), MessageId: m.GetId(), Created: true}, nil
	}
	run := &fakeRun{r: r, session: s, message: m, epoch: 1, Run: &agentv1.Run{
		Id: uuid.NewString(), SessionId: s.GetId(), Ordinal: int64(len(s.runs) + 1), State: agentv1.RunState_RUN_STATE_QUEUED, UserMessageId: m.GetId(),
		Provider: "anthropic", Model: "simulated", CreatedAt: r.now(), CollectToolStats: req.GetCollectToolStats(), Usage: &agentv1.Usage{},
	}}
	m.RunId = run.GetId()
	s.messages = append(s.messages, m)
	s.runs = append(s.runs, run)
	r.runs[run.GetId()] = run
	r.keys[s.GetId()+req.GetIdempotencyKey()] = run.GetId()
	if r.script != nil {
		script := r.script
		r.scripts.Go(func() { script(run) })
	}
	res := &agentv1.SubmitResponse{Run: proto.CloneOf(run.Run), MessageId: m.GetId(), Created: true}
	if r.before != nil {
		r.mu.Unlock()
		r.before()
		r.mu.Lock()
	}
	return res, nil
}

// Move moves nothing.
func (r *fakeRunner) Move(ctx context.Context, req *agentv1.MoveRequest) (*agentv1.MoveResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	if len(s.runs) == 0 {
		return nil, fault.Coded(fault.Conflict, "NO_ACTIVE_RUN", "no run")
	}
	return &agentv1.MoveResponse{Run: proto.CloneOf(s.runs[0].Run)}, nil
}

// Withdraw removes nothing.
func (r *fakeRunner) Withdraw(ctx context.Context, req *agentv1.WithdrawRequest) (*agentv1.WithdrawResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	return &agentv1.WithdrawResponse{}, err
}

// SwitchBranch changes nothing.
func (r *fakeRunner) SwitchBranch(ctx context.Context, req *agentv1.SwitchBranchRequest) (*agentv1.SwitchBranchResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	return &agentv1.SwitchBranchResponse{}, err
}

// ForkSession returns a session without copying anything.
func (r *fakeRunner) ForkSession(ctx context.Context, req *agentv1.ForkSessionRequest) (*agentv1.ForkSessionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	fork := proto.CloneOf(s.Session)
	fork.Id, fork.ForkedFrom, fork.Title = uuid.NewString(), s.GetId(), cmp.Or(req.GetTitle(), fork.GetTitle())
	r.sessions[fork.GetId()] = &fakeSession{Session: fork}
	return &agentv1.ForkSessionResponse{Session: proto.CloneOf(fork)}, nil
}

func (r *fakeRunner) Cancel(ctx context.Context, req *agentv1.CancelRequest) (*agentv1.CancelResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetSessionId(), identity.Editor)
	if err != nil {
		return nil, err
	}
	res := &agentv1.CancelResponse{}
	for _, run := range s.runs {
		if run.GetState() <= agentv1.RunState_RUN_STATE_WAITING && (req.GetRunId() == "" || req.GetRunId() == run.GetId()) {
			res.RunIds = append(res.RunIds, run.GetId())
			r.stopped = append(r.stopped, run.GetId())
		}
	}
	return res, nil
}

func (r *fakeRunner) GetRun(ctx context.Context, req *agentv1.GetRunRequest) (*agentv1.GetRunResponse, error) {
	a, err := may(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.runs[req.GetId()]
	if run == nil || run.session.GetWorkspaceId() != a.Workspace.String() {
		return nil, fault.New(fault.NotFound, "no such run")
	}
	res := &agentv1.GetRunResponse{Run: proto.CloneOf(run.Run)}
	for _, c := range run.calls {
		res.ToolCalls = append(res.ToolCalls, proto.CloneOf(c))
	}
	if run.CollectToolStats {
		res.ToolCalls = []*agentv1.ToolCall{{ToolCallId: "c1", ToolName: "doc_read", ArgsJson: `{"id":"x"}`, Phase: "done", Outcome: &toolv1.Outcome{
			State: toolv1.OutcomeState_OUTCOME_STATE_OK, ResultJson: `{"id":"x"}`, DurationMs: 12, Summary: "x",
		}}}
	}
	if run.asked != nil {
		res.ToolCalls = append(res.ToolCalls, &agentv1.ToolCall{ToolCallId: "c1", ToolName: "send", ArgsJson: "{}", Approval: proto.CloneOf(run.asked)})
	}
	res.Steps = []*agentv1.Step{{FinishReason: "stop", Usage: run.GetUsage(), Wasted: &agentv1.Usage{InputTokens: 20, OutputTokens: 4, Estimated: true}}}
	return res, nil
}

func (r *fakeRunner) ListRuns(ctx context.Context, req *agentv1.ListRunsRequest) (*agentv1.ListRunsResponse, error) {
	a, err := may(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &agentv1.ListRunsResponse{}
	for _, run := range r.runs {
		if run.session.GetWorkspaceId() == a.Workspace.String() && (req.GetSessionId() == "" || req.GetSessionId() == run.GetSessionId()) &&
			(len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), run.GetState())) {
			res.Runs = append(res.Runs, proto.CloneOf(run.Run))
		}
	}
	slices.SortFunc(res.Runs, func(a, b *agentv1.Run) int { return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime()) })
	return res, nil
}

// GetTrace returns the start of the run.
func (r *fakeRunner) GetTrace(ctx context.Context, req *agentv1.GetTraceRequest) (*agentv1.GetTraceResponse, error) {
	res, err := r.GetRun(ctx, &agentv1.GetRunRequest{Id: req.GetId()})
	if err != nil {
		return nil, err
	}
	return &agentv1.GetTraceResponse{Moments: []*agentv1.Moment{{Kind: "run_start", Count: 1, Time: res.GetRun().GetCreatedAt()}}}, nil
}

// record returns the recorded part of a session's log in canonical order.
func (s *fakeSession) record(behind int) (kept []*agentv1.LoggedEvent) {
	type progress struct{ epoch, number int64 }
	runs := map[int64]progress{}
	for _, e := range s.log {
		p, seen := runs[e.GetEvent().GetRunOrdinal()]
		if seen && (e.GetEvent().GetEpoch() < p.epoch || e.GetEvent().GetNumber() <= p.number) {
			continue
		}
		runs[e.GetEvent().GetRunOrdinal()] = progress{e.GetEvent().GetEpoch(), e.GetEvent().GetNumber()}
		kept = append(kept, e)
	}
	return kept[:max(0, len(kept)-behind)]
}

// forget drops the record of a session.
func (r *fakeRunner) forget(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[session].log = nil
}

func (r *fakeRunner) ListEvents(ctx context.Context, req *agentv1.ListEventsRequest) (*agentv1.ListEventsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.session(ctx, req.GetSessionId(), identity.Viewer)
	if err != nil {
		return nil, err
	}
	r.listed++
	if req.GetPageToken() == "" && req.GetRunOrdinal() < 1 {
		return nil, fault.New(fault.Invalid, "run_ordinal: runs are counted from 1")
	}
	kept, begin := s.record(r.behind), 0
	if token := req.GetPageToken(); token != "" {
		if begin, err = strconv.Atoi(token); err != nil {
			return nil, fault.New(fault.Invalid, "page_token: unknown")
		}
	} else if begin = slices.IndexFunc(kept, func(e *agentv1.LoggedEvent) bool {
		return e.GetEvent().GetRunOrdinal() == req.GetRunOrdinal() && e.GetEvent().GetNumber() == req.GetNumber()
	}); begin < 0 {
		return nil, fault.New(fault.NotFound, "no such event")
	}
	const page = 3
	res := &agentv1.ListEventsResponse{Events: kept[begin:min(begin+page, len(kept))]}
	if end := begin + page; end < len(kept) {
		res.NextPageToken = strconv.Itoa(end)
	}
	return res, nil
}

// latest returns a session's newest run, waiting for it to be submitted.
func (r *fakeRunner) latest(t testing.TB, session string, ordinal int) *fakeRun {
	t.Helper()
	var run *fakeRun
	eventually(t, "the run is submitted", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		s := r.sessions[session]
		if s == nil || len(s.runs) < ordinal {
			return false
		}
		run = s.runs[ordinal-1]
		return true
	})
	return run
}

func (f *fakeRun) subject() string {
	ws, s := id.Must[id.Workspace](f.session.GetWorkspaceId()), id.Must[id.Session](f.session.GetId())
	return subject.Events(subject.Partition(s, partitions), ws, s)
}

// publish publishes an event unchanged.
func (f *fakeRun) publish(t testing.TB, e *runv1.Event) {
	t.Helper()
	// A script may outlive its test; the world waits for it.
	e = proto.CloneOf(e)
	seq, err := f.r.bus.Publish(context.WithoutCancel(t.Context()), f.subject(), f.prefix+uuid.NewString(), e)
	if err != nil {
		t.Errorf("publish: %v", err)
	}
	f.set(func() {
		logged := &agentv1.LoggedEvent{Event: e, Sequence: seq, StreamCreated: &timestamppb.Timestamp{Seconds: f.r.streams}}
		// The next run may start before this one's end is acknowledged, so the record is kept in
		// the order of the log.
		at := len(f.session.log)
		for at > 0 && f.session.log[at-1].GetStreamCreated().GetSeconds() == f.r.streams && f.session.log[at-1].GetSequence() > seq {
			at--
		}
		f.session.log = slices.Insert(f.session.log, at, logged)
	})
}

// event completes e as the run's next event.
func (f *fakeRun) event(e *runv1.Event) *runv1.Event {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	e.RunId, e.RunOrdinal, e.Epoch, e.Number = f.GetId(), f.GetOrdinal(), f.epoch, f.next
	f.next++
	return e
}

func (f *fakeRun) begin(t testing.TB) {
	t.Helper()
	f.set(func() { f.State = agentv1.RunState_RUN_STATE_RUNNING })
	f.publish(t, f.event(&runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: f.message.GetId(), CreatedBy: "u", ContentJson: f.message.GetContentJson()}}}))
	f.publish(t, f.event(&runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Provider: "anthropic", Model: "simulated"}}}))
}

func textDelta(s string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: s}}}
}

func (f *fakeRun) say(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		f.publish(t, f.event(textDelta(w)))
	}
}

func (f *fakeRun) set(fn func()) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	fn()
}

// step commits a step and then publishes its event.
func (f *fakeRun) step(t testing.TB, text string) {
	t.Helper()
	content, err := json.Marshal([]map[string]string{{"type": "text", "text": text}})
	if err != nil {
		t.Fatal(err)
	}
	e := f.event(&runv1.Event{Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{TokensIn: 10, TokensOut: 5, FinishReason: "stop"}}})
	f.set(func() {
		f.session.messages = append(f.session.messages, &agentv1.Message{
			Id: uuid.NewString(), SessionId: f.session.GetId(), Role: "assistant", ContentJson: string(content), RunId: f.GetId(), CreatedAt: f.r.now(),
			StepIndex: new(f.GetSteps()), Model: "simulated",
		})
		f.LastEvent, f.Steps, f.Text = new(e.GetNumber()), f.GetSteps()+1, text
		f.Usage = &agentv1.Usage{InputTokens: 10, OutputTokens: 5}
	})
	f.publish(t, e)
}

// commitEnd ends the run in its row and returns the end event without publishing it.
func (f *fakeRun) commitEnd(state agentv1.RunState, reason string) *runv1.Event {
	e := f.event(&runv1.Event{})
	f.set(func() {
		f.State, f.FinishReason, f.LastEvent, f.EndedAt = state, reason, new(e.GetNumber()), f.r.now()
		if state == agentv1.RunState_RUN_STATE_FAILED {
			f.ErrorMessage, f.ErrorCode = "the model is overloaded", "PROVIDER_OVERLOADED"
			e.Body = &runv1.Event_Error{Error: &runv1.Error{Message: f.ErrorMessage, Code: f.ErrorCode}}
			return
		}
		e.Body = &runv1.Event_Done{Done: &runv1.Done{Text: f.Text, FinalText: f.Text, TotalTokensIn: f.GetUsage().GetInputTokens(), TotalTokensOut: f.GetUsage().GetOutputTokens(), Steps: f.Steps, FinishReason: reason}}
	})
	return e
}

func (f *fakeRun) end(t testing.TB) {
	t.Helper()
	f.publish(t, f.commitEnd(agentv1.RunState_RUN_STATE_DONE, "stop"))
}

// answer plays a complete run with one step.
func (f *fakeRun) answer(t testing.TB, words ...string) {
	t.Helper()
	f.begin(t)
	f.say(t, words...)
	f.step(t, strings.Join(words, ""))
	f.end(t)
}

// fakePresets has one preset, with a tool that is not available.
type fakePresets struct{}

func (fakePresets) ListPresets(ctx context.Context, _ *agentv1.ListPresetsRequest) (*agentv1.ListPresetsResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.ListPresetsResponse{Presets: []*agentv1.Preset{{
		Name: "mine", MaxSteps: 3, Tools: []string{"x"}, Own: true, UnavailableTools: []*agentv1.UnavailableTool{{Name: "x", Reason: "gone"}},
	}}}, nil
}

func (fakePresets) PutPreset(ctx context.Context, _ *agentv1.PutPresetRequest) (*agentv1.PutPresetResponse, error) {
	_, err := may(ctx, identity.Owner)
	return &agentv1.PutPresetResponse{}, err
}

func (fakePresets) DeletePreset(ctx context.Context, _ *agentv1.DeletePresetRequest) (*agentv1.DeletePresetResponse, error) {
	_, err := may(ctx, identity.Owner)
	return &agentv1.DeletePresetResponse{}, err
}

// fakeUsage has one budget.
type fakeUsage struct{}

func (fakeUsage) GetUsage(ctx context.Context, req *agentv1.GetUsageRequest) (*agentv1.GetUsageResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.GetUsageResponse{Groups: []*agentv1.UsageGroup{{Key: req.GetBy(), Calls: int64(req.GetTo().AsTime().Sub(req.GetFrom().AsTime()).Hours())}}}, nil
}

func (fakeUsage) ListBudgets(ctx context.Context, _ *agentv1.ListBudgetsRequest) (*agentv1.ListBudgetsResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.ListBudgetsResponse{Budgets: []*agentv1.Budget{{
		Id: id.New[id.Operation]().String(), Scope: "member", Tokens: new(int64(5)), Used: &agentv1.BudgetUse{Tokens: 3},
	}}}, nil
}

func (fakeUsage) SetBudget(ctx context.Context, req *agentv1.SetBudgetRequest) (*agentv1.SetBudgetResponse, error) {
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	return &agentv1.SetBudgetResponse{Budget: &agentv1.Budget{Scope: req.GetScope(), Subject: req.GetSubject(), Tokens: req.Tokens, CostMicros: req.CostMicros, Steps: req.Steps}}, nil
}

func (fakeUsage) DeleteBudget(ctx context.Context, _ *agentv1.DeleteBudgetRequest) (*agentv1.DeleteBudgetResponse, error) {
	_, err := may(ctx, identity.Owner)
	return &agentv1.DeleteBudgetResponse{}, err
}

// noone is an id of nobody.
const noone = "0193a1b2-0000-7000-8000-000000000000"

// fakeApprovals has one call that waits in each session, c1, and one rule. It stores the answers about
// calls of the runner's runs.
type fakeApprovals struct{ r *fakeRunner }

func (fakeApprovals) ListApprovals(ctx context.Context, req *agentv1.ListApprovalsRequest) (*agentv1.ListApprovalsResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.ListApprovalsResponse{Approvals: []*agentv1.Approval{waitingCall(req.GetSessionId())}}, nil
}

// question returns the question about the run's call c1.
func (r *fakeRun) question() *agentv1.Approval {
	for _, c := range r.calls {
		if c.GetToolCallId() == "c1" {
			return c.GetApproval()
		}
	}
	return r.asked
}

func waitingCall(session string) *agentv1.Approval {
	return &agentv1.Approval{
		SessionId: session, SessionTitle: "Title", RunId: noone, StepIndex: 2, ToolCallId: "c1", ToolName: "send", ArgsJson: `{"to":"x"}`,
		Question: agentv1.Question_QUESTION_APPROVAL, Reason: "it sends", AskedFor: noone,
		AskedAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
}

func (f fakeApprovals) Decide(ctx context.Context, req *agentv1.DecideRequest) (*agentv1.DecideResponse, error) {
	if _, err := may(ctx, identity.Editor); err != nil {
		return nil, err
	}
	if req.GetToolCallId() != "c1" {
		return nil, fault.New(fault.NotFound, "no such call")
	}
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	p := waitingCall(req.GetSessionId())
	if run := f.r.runs[req.GetRunId()]; run != nil {
		p = run.question()
		if d := p.GetDecision(); d != agentv1.Decision_DECISION_UNSPECIFIED && d != req.GetDecision() {
			return nil, fault.Coded(fault.Conflict, "APPROVAL_DECIDED", "this call was answered in another way")
		}
	}
	if at := req.GetAskedAt(); at != nil && !at.AsTime().Equal(p.GetAskedAt().AsTime()) || req.GetRunId() == noone[:35]+"1" {
		return nil, fault.Coded(fault.Conflict, "APPROVAL_CHANGED", "another question was asked about this call")
	}
	p.Decision, p.DecisionReason = req.GetDecision(), req.GetReason()+" "+req.GetRemember().String()
	return &agentv1.DecideResponse{Approval: proto.CloneOf(p)}, nil
}

func (fakeApprovals) CreateRule(ctx context.Context, req *agentv1.CreateRuleRequest) (*agentv1.CreateRuleResponse, error) {
	if _, err := may(ctx, identity.Editor); err != nil {
		return nil, err
	}
	return &agentv1.CreateRuleResponse{Rule: &agentv1.Rule{Id: noone, ToolName: req.GetToolName(), ArgsJson: req.GetArgsJson(), Effect: req.GetEffect(), SessionId: req.GetSessionId()}}, nil
}

func (fakeApprovals) ListRules(ctx context.Context, _ *agentv1.ListRulesRequest) (*agentv1.ListRulesResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.ListRulesResponse{Rules: []*agentv1.Rule{{Id: noone, ToolName: "send", Effect: agentv1.RuleEffect_RULE_EFFECT_ALLOW}}}, nil
}

func (fakeApprovals) DeleteRule(ctx context.Context, _ *agentv1.DeleteRuleRequest) (*agentv1.DeleteRuleResponse, error) {
	_, err := may(ctx, identity.Editor)
	return &agentv1.DeleteRuleResponse{}, err
}

// fakeAudit has two rows: of 1970, and of a future that is after everything a test does.
type fakeAudit struct{}

func (fakeAudit) ListAudit(ctx context.Context, req *agentv1.ListAuditRequest) (*agentv1.ListAuditResponse, error) {
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	rows := []*agentv1.AuditRow{
		{Id: noone, At: timestamppb.New(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)), Action: "call-expired", Subject: "c2", ToolName: "send"},
		{Id: noone, At: timestamppb.New(time.Unix(0, 0)), MemberId: noone, Action: "call-approved", Subject: "c1", ToolName: "send", Detail: "yes"},
	}
	if at, _, ok := strings.Cut(req.GetPageToken(), "_"); ok {
		before, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return nil, fault.New(fault.Invalid, "page_token")
		}
		rows = slices.DeleteFunc(rows, func(r *agentv1.AuditRow) bool { return !r.GetAt().AsTime().Before(before) })
	}
	rows = slices.DeleteFunc(rows, func(r *agentv1.AuditRow) bool {
		return !strings.Contains(r.String(), req.GetQuery()) && !slices.Contains(req.GetQueryMembers(), r.GetMemberId())
	})
	res := &agentv1.ListAuditResponse{Rows: rows}
	if n := int(req.GetLimit()); n < len(rows) {
		res.Rows, res.NextPageToken = rows[:n], "more"
	}
	return res, nil
}

// fakeModels has two models, and a provider that is unavailable.
type fakeModels struct{}

func (fakeModels) ListModels(ctx context.Context, _ *agentv1.ListModelsRequest) (*agentv1.ListModelsResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &agentv1.ListModelsResponse{
		Models: []*agentv1.Model{
			{
				Provider: "anthropic", Id: "claude", Name: "Claude", Context: 200_000, MaxOutput: 64_000, Prices: &agentv1.ModelPrices{Input: 3, Output: 15, CacheRead: 0.3, CacheWrite: 3.75},
				Tools: true, Images: true, Reasoning: true, WebSearch: true, Default: true,
			},
			{Provider: "simulator", Id: "simulated", Name: "Simulated answers", Tools: true, Simulated: true},
		},
		Problems: []*agentv1.ProviderProblem{{Provider: "ollama", Reason: "it is away"}},
	}, nil
}

// fakeTools is a catalogue of three tools.
type fakeTools struct{}

func (fakeTools) ListTools(ctx context.Context, _ *toolv1.ListToolsRequest) (*toolv1.ListToolsResponse, error) {
	if _, err := may(ctx, identity.Viewer); err != nil {
		return nil, err
	}
	return &toolv1.ListToolsResponse{Tools: []*toolv1.Tool{
		{Name: "doc_read", Description: "Reads.", InputSchemaJson: `{"type":"object"}`, Available: true, Source: "built-in", Effect: toolv1.Effect_EFFECT_PURE},
		{Name: "calendar_list_events", Description: "Lists.", InputSchemaJson: "", UnavailableReason: "connect Google first", ConnectUrl: "https://x", Source: "built-in", NeedsApproval: true, Effect: toolv1.Effect_EFFECT_SAME_TX, ActsOutside: true},
		{Name: "web_search", Description: "Searches.", InputSchemaJson: "", Available: true, Source: "provider"},
	}}, nil
}

func (fakeTools) GetOutcomes(context.Context, *toolv1.GetOutcomesRequest) (*toolv1.GetOutcomesResponse, error) {
	return &toolv1.GetOutcomesResponse{}, nil
}

// fakeMcp keeps MCP servers in memory, each with one tool that has changed.
type fakeMcp struct {
	mu      sync.Mutex // guards servers
	servers []*toolv1.McpServer
}

func (f *fakeMcp) ListServers(ctx context.Context, _ *toolv1.ListServersRequest) (*toolv1.ListServersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := may(ctx, identity.Viewer)
	return &toolv1.ListServersResponse{Servers: f.servers}, err
}

func (f *fakeMcp) CreateServer(ctx context.Context, req *toolv1.CreateServerRequest) (*toolv1.CreateServerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	actor, err := may(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	for _, s := range f.servers {
		if s.GetId() == req.GetId() {
			return &toolv1.CreateServerResponse{Server: s}, nil
		}
	}
	s := &toolv1.McpServer{
		Id: req.GetId(), Name: req.GetName(), Url: req.GetUrl(), Credential: req.GetCredential(), CreatedBy: actor.Member.String(), CreatedAt: timestamppb.Now(),
		NeedsSignIn: strings.HasSuffix(req.GetUrl(), "/oauth"), Scope: "read",
		Tools: []*toolv1.McpTool{{Name: "mcp__x__t", OriginalName: "t", Changed: true, Hash: "h", UnavailableReason: "it has changed"}},
	}
	f.servers = append(f.servers, s)
	return &toolv1.CreateServerResponse{Server: s}, nil
}

func (f *fakeMcp) find(server string) (*toolv1.McpServer, error) {
	for _, s := range f.servers {
		if s.GetId() == server {
			return s, nil
		}
	}
	return nil, fault.New(fault.NotFound, "there is no such server")
}

func (f *fakeMcp) DeleteServer(ctx context.Context, req *toolv1.DeleteServerRequest) (*toolv1.DeleteServerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	s, err := f.find(req.GetId())
	f.servers = slices.DeleteFunc(f.servers, func(o *toolv1.McpServer) bool { return o == s })
	return &toolv1.DeleteServerResponse{}, err
}

func (f *fakeMcp) ListServerAudit(ctx context.Context, req *toolv1.ListServerAuditRequest) (*toolv1.ListServerAuditResponse, error) {
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	return &toolv1.ListServerAuditResponse{NextPageToken: req.GetPageToken() + fmt.Sprint(req.GetLimit()) + req.GetQuery() + strings.Join(req.GetQueryMembers(), ""), Changes: []*toolv1.ServerChange{{
		Id: noone, At: timestamppb.New(time.Unix(0, 0)), MemberId: noone, Action: "tools-approved", ServerId: noone, ServerName: "linear", Detail: "echo",
	}}}, nil
}

func (f *fakeMcp) TestServer(ctx context.Context, req *toolv1.TestServerRequest) (*toolv1.TestServerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := may(ctx, identity.Editor); err != nil {
		return nil, err
	}
	s, err := f.find(req.GetId())
	return &toolv1.TestServerResponse{Server: s}, err
}

func (f *fakeMcp) SignedIn(ctx context.Context, req *toolv1.SignedInRequest) (*toolv1.SignedInResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	for _, s := range f.servers {
		if s.GetName() == req.GetName() {
			s.NeedsSignIn = false
			return &toolv1.SignedInResponse{Server: s}, nil
		}
	}
	return nil, fault.New(fault.NotFound, "there is no MCP server called %q", req.GetName())
}

func (f *fakeMcp) ApproveTools(ctx context.Context, req *toolv1.ApproveToolsRequest) (*toolv1.ApproveToolsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := may(ctx, identity.Editor); err != nil {
		return nil, err
	}
	s, err := f.find(req.GetId())
	for _, t := range s.GetTools() {
		if slices.Contains(req.GetHashes(), t.GetHash()) {
			t.Changed, t.UnavailableReason = false, ""
		}
	}
	return &toolv1.ApproveToolsResponse{Server: s}, err
}

// fakeDocuments keeps documents in memory. A repeated operation key changes nothing.
type fakeDocuments struct {
	documentv1connect.UnimplementedDocumentServiceHandler

	mu   sync.Mutex // guards what follows
	docs map[string]*fakeDocument
	keys map[string]*documentv1.Document
	// changed is closed and replaced at every change.
	changed chan struct{}
}

type fakeDocument struct {
	*documentv1.Document
	versions []fakeVersion
}

type fakeVersion struct {
	*documentv1.Version
	markdown string
}

func newFakeDocuments() *fakeDocuments {
	return &fakeDocuments{docs: map[string]*fakeDocument{}, keys: map[string]*documentv1.Document{}, changed: make(chan struct{})}
}

// announce is called with the mutex held.
func (f *fakeDocuments) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeDocuments) Get(ctx context.Context, req *documentv1.GetRequest) (*documentv1.GetResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &documentv1.GetResponse{Document: proto.CloneOf(d.Document)}, nil
}

// Subscribe tells the current state, then that of every change, until the deletion.
func (f *fakeDocuments) Subscribe(ctx context.Context, req *documentv1.SubscribeRequest, out *connect.ServerStream[documentv1.SubscribeResponse]) error {
	for kind := documentv1.SubscribeResponse_KIND_CURRENT; ; kind = documentv1.SubscribeResponse_KIND_CHANGED {
		f.mu.Lock()
		changed := f.changed
		res := &documentv1.SubscribeResponse{Kind: kind}
		d, err := f.get(ctx, req.GetId())
		if err == nil {
			res.Document = proto.CloneOf(d.Document)
		}
		f.mu.Unlock()
		if err != nil && kind == documentv1.SubscribeResponse_KIND_CURRENT {
			return err
		}
		if err != nil {
			return out.Send(&documentv1.SubscribeResponse{Kind: documentv1.SubscribeResponse_KIND_DELETED})
		}
		if err := out.Send(res); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change runs fn on a document, once per key.
func (f *fakeDocuments) change(ctx context.Context, document, key, operation string, ifSequence int64, fn func(d *fakeDocument) string) (*documentv1.Document, error) {
	a, err := may(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.keys[key]; old != nil {
		return old, nil
	}
	d := f.docs[document]
	if operation == "create" {
		d = &fakeDocument{Document: &documentv1.Document{Id: uuid.NewString(), WorkspaceId: a.Workspace.String(), CreatedBy: a.Member.String(), CreatedAt: timestamppb.Now()}}
		f.docs[d.Id] = d
	}
	if d == nil || d.GetWorkspaceId() != a.Workspace.String() {
		return nil, fault.New(fault.NotFound, "no such document")
	}
	if err := isAt(d, ifSequence); err != nil {
		return nil, err
	}
	markdown := fn(d)
	d.Sequence++
	d.UpdatedAt = timestamppb.Now()
	d.versions = append(d.versions, fakeVersion{&documentv1.Version{
		Version: d.Sequence, Operation: operation, Name: d.Name, CreatedAt: d.UpdatedAt, Author: &documentv1.Author{MemberId: a.Member.String()},
		Undoable: operation != "create" && operation != "rename",
	}, markdown})
	f.announce()
	out := proto.CloneOf(d.Document)
	if key != "" {
		f.keys[key] = out
	}
	return out, nil
}

// isAt returns a fault unless the document has the sequence; 0 is any.
func isAt(d *fakeDocument, sequence int64) error {
	if sequence != 0 && sequence != d.Sequence {
		return fault.Coded(fault.Conflict, fault.CodePrecondition, "it is at %d now", d.Sequence)
	}
	return nil
}

func (d *fakeDocument) markdown() string { return d.versions[len(d.versions)-1].markdown }

func (f *fakeDocuments) Create(ctx context.Context, req *documentv1.CreateRequest) (*documentv1.CreateResponse, error) {
	d, err := f.change(ctx, "", req.GetOperationKey(), "create", 0, func(d *fakeDocument) string {
		d.Name = req.GetName()
		return req.GetMarkdown()
	})
	return &documentv1.CreateResponse{Document: d, Warnings: kbdIn(req.GetMarkdown())}, err
}

func (f *fakeDocuments) Rename(ctx context.Context, req *documentv1.RenameRequest) (*documentv1.RenameResponse, error) {
	d, err := f.change(ctx, req.GetId(), req.GetOperationKey(), "rename", req.GetIfSequence(), func(d *fakeDocument) string {
		d.Name = req.GetName()
		return d.markdown()
	})
	return &documentv1.RenameResponse{Document: d}, err
}

func (f *fakeDocuments) Replace(ctx context.Context, req *documentv1.ReplaceRequest) (*documentv1.ReplaceResponse, error) {
	res := &documentv1.ReplaceResponse{Exact: true}
	d, err := f.change(ctx, req.GetId(), req.GetOperationKey(), "replace", req.GetIfSequence(), func(d *fakeDocument) string {
		if req.Name != nil {
			d.Name = req.GetName()
		}
		if req.GetBase() == 0 {
			return req.GetMarkdown()
		}
		res.Markdown = fmt.Sprintf("%s, and %s from %d", d.markdown(), req.GetMarkdown(), req.GetBase())
		return res.Markdown
	})
	res.Document, res.Warnings = d, kbdIn(req.GetMarkdown())
	return res, err
}

// kbdIn returns a warning for each <kbd>, which the fake cannot represent.
func kbdIn(markdown string) []*documentv1.Warning {
	before, _, found := strings.Cut(markdown, "<kbd>")
	if !found {
		return nil
	}
	return []*documentv1.Warning{{Line: int32(1 + strings.Count(before, "\n")), What: "the HTML <kbd>", KeptAs: "text"}}
}

func (f *fakeDocuments) Restore(ctx context.Context, req *documentv1.RestoreRequest) (*documentv1.RestoreResponse, error) {
	d, err := f.change(ctx, req.GetId(), req.GetOperationKey(), "restore", req.GetIfSequence(), func(d *fakeDocument) string {
		return d.versions[req.GetVersion()-1].markdown
	})
	return &documentv1.RestoreResponse{Document: d}, err
}

// LabelVersion returns the version with its label.
func (f *fakeDocuments) LabelVersion(ctx context.Context, req *documentv1.LabelVersionRequest) (*documentv1.LabelVersionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.get(ctx, req.GetId()); err != nil {
		return nil, err
	}
	return &documentv1.LabelVersionResponse{Version: &documentv1.Version{Version: req.GetVersion(), Label: req.GetLabel(), CreatedAt: timestamppb.Now()}}, nil
}

// Undo restores the text of the previous version.
func (f *fakeDocuments) Undo(ctx context.Context, req *documentv1.UndoRequest) (*documentv1.UndoResponse, error) {
	n := req.GetVersion() - 1
	var by int64
	f.mu.Lock()
	if d := f.docs[req.GetId()]; d != nil && f.keys[req.GetOperationKey()] == nil && n < int64(len(d.versions)) && isAt(d, req.GetIfSequence()) == nil {
		if by = d.versions[n].UndoneBy; by == 0 {
			d.versions[n].UndoneBy, d.versions[n].Undoable = d.GetSequence()+1, false
		}
	}
	f.mu.Unlock()
	if by != 0 {
		return nil, fault.Coded(fault.Conflict, "ALREADY_UNDONE", "version %d was undone already, by version %d", req.GetVersion(), by)
	}
	d, err := f.change(ctx, req.GetId(), req.GetOperationKey(), "undo", req.GetIfSequence(), func(d *fakeDocument) string { return d.versions[n-1].markdown })
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.docs[req.GetId()].versions[d.GetSequence()-1].Undoes = req.GetVersion()
	}
	return &documentv1.UndoResponse{Document: d}, err
}

func (f *fakeDocuments) get(ctx context.Context, document string) (*fakeDocument, error) {
	a, err := may(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	d := f.docs[document]
	if d == nil || d.GetWorkspaceId() != a.Workspace.String() {
		return nil, fault.New(fault.NotFound, "no such document")
	}
	return d, nil
}

func (f *fakeDocuments) Delete(ctx context.Context, req *documentv1.DeleteRequest) (*documentv1.DeleteResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ctx, req.GetId())
	if err == nil {
		err = isAt(d, req.GetIfSequence())
	}
	if err != nil {
		return nil, err
	}
	delete(f.docs, req.GetId())
	f.announce()
	return &documentv1.DeleteResponse{}, nil
}

func (f *fakeDocuments) Read(ctx context.Context, req *documentv1.ReadRequest) (*documentv1.ReadResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &documentv1.ReadResponse{Document: proto.CloneOf(d.Document), Markdown: d.markdown()}, nil
}

func (f *fakeDocuments) List(ctx context.Context, req *documentv1.ListRequest) (*documentv1.ListResponse, error) {
	a, err := may(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	if token := req.GetPageToken(); token != "" && uuid.Validate(token) != nil {
		return nil, fault.New(fault.Invalid, "page_token: unknown; pass the next_page_token of the previous page unchanged")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*documentv1.Document
	for _, d := range f.docs {
		if d.GetWorkspaceId() == a.Workspace.String() && d.GetId() > req.GetPageToken() {
			found = append(found, proto.CloneOf(d.Document))
		}
	}
	slices.SortFunc(found, func(a, b *documentv1.Document) int { return strings.Compare(a.GetId(), b.GetId()) })
	res := &documentv1.ListResponse{Documents: found}
	if n := int(req.GetPageSize()); len(found) > n {
		res.Documents, res.NextPageToken = found[:n], found[n-1].GetId()
	}
	return res, nil
}

// by makes a run the author of a version.
func (f *fakeDocuments) by(document string, version int, run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.docs[document].versions[version-1].Author = &documentv1.Author{RunId: run}
}

func (f *fakeDocuments) ReadVersion(ctx context.Context, req *documentv1.ReadVersionRequest) (*documentv1.ReadVersionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	n := int(req.GetVersion())
	if n < 2 || n > len(d.versions) {
		return nil, fault.New(fault.NotFound, "no such version")
	}
	return &documentv1.ReadVersionResponse{Version: d.versions[n-1].Version, Markdown: d.versions[n-1].markdown, BeforeMarkdown: d.versions[n-2].markdown}, nil
}

func (f *fakeDocuments) Versions(ctx context.Context, req *documentv1.VersionsRequest) (*documentv1.VersionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	res := &documentv1.VersionsResponse{}
	for _, v := range slices.Backward(d.versions) {
		res.Versions = append(res.Versions, v.Version)
	}
	return res, nil
}
