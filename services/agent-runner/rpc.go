package agentrunner

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/archive"
	"signalbox.dev/services/agent-runner/internal/budget"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/provider"
	"signalbox.dev/services/agent-runner/internal/run"
)

// conversations implements ConversationService.
type conversations struct {
	store   *conversation.Store
	nudge   func(context.Context, ...id.Run)
	starter *starter
	// cancelTools asks the executors to stop a run's calls.
	cancelTools func(context.Context, id.Run)
	presets     *presets
	log         *slog.Logger
}

func (c *conversations) CreateSession(ctx context.Context, req *agentv1.CreateSessionRequest) (*agentv1.CreateSessionResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	s, err := c.store.Create(ctx, actor, req)
	if err != nil {
		return nil, err
	}
	return &agentv1.CreateSessionResponse{Session: s.Proto()}, nil
}

func (c *conversations) ListSessions(ctx context.Context, req *agentv1.ListSessionsRequest) (*agentv1.ListSessionsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	q := conversation.Query{
		Limit: int(req.GetLimit()), Words: req.GetQuery(), Archived: req.GetArchived(), State: run.State(req.GetState()),
		ByUpdate: req.GetByUpdate(), Token: req.GetPageToken(),
	}
	if req.GetBefore() != nil {
		q.Before = req.GetBefore().AsTime()
	}
	page, more, next, err := c.store.List(ctx, actor, q)
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListSessionsResponse{More: more, NextPageToken: next}
	for i := range page {
		res.Sessions = append(res.Sessions, page[i].Proto())
	}
	return res, nil
}

func (c *conversations) GetSession(ctx context.Context, req *agentv1.GetSessionRequest) (*agentv1.GetSessionResponse, error) {
	actor, session, err := c.authorizeRead(ctx, req)
	if err != nil {
		return nil, err
	}
	var page *conversation.Page
	if !req.GetWithoutMessages() {
		page = &conversation.Page{Limit: int(req.GetLimit()), Before: req.GetBefore()}
		if req.GetRunId() != "" {
			if page.Run, err = id.Parse[id.Run](req.GetRunId()); err != nil {
				return nil, fault.New(fault.Invalid, "run_id: %v", err)
			}
		}
	}
	v, err := c.store.Read(ctx, actor, session, page)
	if err != nil {
		return nil, err
	}
	res := &agentv1.GetSessionResponse{Session: v.Session.Proto(), Earlier: v.Earlier, RunId: req.GetRunId()}
	for _, r := range v.Runs {
		res.Runs = append(res.Runs, figuresOf(r))
	}
	for i := range v.Messages {
		m := messageOf(session, &v.Messages[i].Message, v.Runs[v.Messages[i].Run])
		if p := v.Messages[i].Parent; p != nil {
			m.ParentId = p.String()
		}
		for _, s := range v.Messages[i].Siblings {
			m.Siblings = append(m.Siblings, s.String())
		}
		res.Messages = append(res.Messages, m)
	}
	for _, s := range v.NextSiblings {
		res.NextSiblings = append(res.NextSiblings, s.String())
	}
	for i := range v.Stopped {
		res.StoppedRuns = append(res.StoppedRuns, v.Stopped[i].Proto())
	}
	if page != nil && page.Before == 0 && id.IsZero(page.Run) {
		res.UnavailableTools = c.presets.ofSession(ctx, actor.Workspace, res.GetSession())
	}
	if v.Active != nil {
		res.ActiveRun = v.Active.Proto()
	}
	if m := v.Summary; m != nil {
		res.Summary = &agentv1.Summary{Messages: int32(m.Messages), Text: m.Text, CreatedAt: timestamppb.New(m.CreatedAt)}
	}
	if v.Last != nil {
		res.LastEvent = &agentv1.EventPosition{RunOrdinal: v.Last.Ordinal, Number: v.Last.LastEvent}
	}
	if v.Switched > res.GetLastEvent().GetRunOrdinal() {
		res.LastEvent = &agentv1.EventPosition{RunOrdinal: v.Switched}
	}
	return res, nil
}

// authorizeRead is authorize for a session that may be named by its idempotency key.
func (c *conversations) authorizeRead(ctx context.Context, req *agentv1.GetSessionRequest) (identity.Actor, id.Session, error) {
	if req.GetIdempotencyKey() == "" {
		return authorize(ctx, identity.Viewer, req.GetId())
	}
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return actor, id.Session{}, err
	}
	session, err := c.store.Find(ctx, actor, req.GetIdempotencyKey())
	return actor, session, err
}

func (c *conversations) UpdateSession(ctx context.Context, req *agentv1.UpdateSessionRequest) (*agentv1.UpdateSessionResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetId())
	if err != nil {
		return nil, err
	}
	s, err := c.store.Update(ctx, actor, session, req)
	if err != nil {
		return nil, err
	}
	return &agentv1.UpdateSessionResponse{Session: s.Proto()}, nil
}

func (c *conversations) CompactSession(ctx context.Context, req *agentv1.CompactSessionRequest) (*agentv1.CompactSessionResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := c.store.Compact(ctx, actor, session); err != nil {
		return nil, err
	}
	return &agentv1.CompactSessionResponse{}, nil
}

func (c *conversations) DeleteSession(ctx context.Context, req *agentv1.DeleteSessionRequest) (*agentv1.DeleteSessionResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetId())
	if err != nil {
		return nil, err
	}
	active, err := c.store.Delete(ctx, actor, session)
	if err != nil {
		return nil, err
	}
	c.nudge(ctx, active...)
	for _, r := range active {
		c.cancelTools(ctx, r)
	}
	return &agentv1.DeleteSessionResponse{}, nil
}

func (c *conversations) Submit(ctx context.Context, req *agentv1.SubmitRequest) (*agentv1.SubmitResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	in := conversation.NewMessage{
		Session: session, Content: json.RawMessage(req.GetContentJson()), Model: req.GetModel(), Provider: req.GetProvider(),
		Tools: conversation.Selection(req.GetTools()), CollectToolStats: req.GetCollectToolStats(), IdempotencyKey: req.GetIdempotencyKey(), ResponseSchema: req.GetResponseSchemaJson(),
		ClientTools: req.GetClientTools(), Mode: modeOf(req.GetMode()), Timezone: req.GetTimezone(), Last: req.LastOrdinal,
	}
	if err := branches(req, &in); err != nil {
		return nil, err
	}
	reservation := c.starter.reserve(actor.Workspace, session)
	defer reservation.release(ctx)
	// Submit completes even if the caller goes away, so that it is known whether the run
	// was created and claimed.
	if in.Edit == nil && in.Regenerate == nil {
		in.PreClaim = reservation.claimNew()
	}
	out, err := c.store.Submit(context.WithoutCancel(ctx), actor, in)
	if err != nil {
		return nil, err
	}
	switch {
	case out.First:
		reservation.begin(ctx, out)
	case out.Steered:
		c.nudge(ctx, out.Run.ID)
	}
	return &agentv1.SubmitResponse{Run: out.Run.Proto(), MessageId: out.Message.String(), Created: out.Created}, nil
}

// branches reads which branch a message begins.
func branches(req *agentv1.SubmitRequest, in *conversation.NewMessage) error {
	named := req.GetEdit().GetOf()
	switch {
	case req.GetEdit() != nil && req.GetRegenerate() != nil:
		return fault.New(fault.Invalid, "want an edited message or one to answer again, not both")
	case req.GetRegenerate() != nil:
		named = req.GetRegenerate().GetOf()
	case req.GetEdit() == nil:
		return nil
	}
	of, err := conversation.RefOf(named)
	if err != nil {
		return err
	}
	if req.GetRegenerate() != nil {
		in.Regenerate = &of
		return nil
	}
	in.Edit, in.Content = &of, json.RawMessage(req.GetEdit().GetContentJson())
	return nil
}

// SwitchBranch implements ConversationService.
func (c *conversations) SwitchBranch(ctx context.Context, req *agentv1.SwitchBranchRequest) (*agentv1.SwitchBranchResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	of, err := conversation.RefOf(&agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: req.GetMessageId()}})
	if err != nil {
		return nil, err
	}
	return &agentv1.SwitchBranchResponse{}, c.store.Switch(ctx, actor, session, of.Message)
}

// ForkSession implements ConversationService.
func (c *conversations) ForkSession(ctx context.Context, req *agentv1.ForkSessionRequest) (*agentv1.ForkSessionResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	fork := conversation.Fork{Session: session, Title: req.GetTitle(), Archived: req.GetArchived(), IdempotencyKey: req.GetIdempotencyKey()}
	var of agentv1.MessageRef
	switch {
	case req.GetMessageId() != "":
		of.By = &agentv1.MessageRef_MessageId{MessageId: req.GetMessageId()}
	case req.GetRunId() != "":
		of.By = &agentv1.MessageRef_RunId{RunId: req.GetRunId()}
	}
	ref, err := conversation.RefOf(&of)
	if err != nil {
		return nil, err
	}
	fork.Message, fork.Run = ref.Message, ref.Run
	s, err := c.store.Fork(ctx, actor, fork)
	if err != nil {
		return nil, err
	}
	return &agentv1.ForkSessionResponse{Session: s.Proto()}, nil
}

// SendToolResult implements ConversationService.
func (c *conversations) SendToolResult(ctx context.Context, req *agentv1.SendToolResultRequest) (*agentv1.SendToolResultResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	in := conversation.ClientResult{Session: session, ToolCallID: req.GetToolCallId(), Step: req.StepIndex, Output: json.RawMessage(req.GetOutputJson()), Error: req.GetError()}
	if in.Error == "" && len(in.Output) == 0 {
		return nil, fault.New(fault.Invalid, "output: want either output or error, and neither empty")
	}
	if in.Run, err = optionalRun(req.GetRunId()); err != nil {
		return nil, err
	}
	run, call, err := c.store.SendResult(ctx, actor, in)
	if err != nil {
		return nil, err
	}
	c.log.InfoContext(ctx, "tool call answered by a client", "workspace", actor.Workspace, "session", session, "run", run, "key", call.Key,
		"tool", call.ToolName, "ok", in.Error == "", "bytes", len(*call.Result), "member", actor.Member)
	return &agentv1.SendToolResultResponse{RunId: run.String(), ToolCall: callOf(run, call)}, nil
}

// optionalRun returns nil for an empty id.
func optionalRun(s string) (*id.Run, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // none is given
	}
	r, err := id.Parse[id.Run](s)
	if err != nil {
		return nil, fault.New(fault.Invalid, "run_id: %v", err)
	}
	return &r, nil
}

func modeOf(m agentv1.SubmitMode) conversation.Mode {
	switch m {
	case agentv1.SubmitMode_SUBMIT_MODE_STEER:
		return conversation.Steer
	case agentv1.SubmitMode_SUBMIT_MODE_REJECT:
		return conversation.Reject
	default:
		return conversation.Queue
	}
}

func (c *conversations) Cancel(ctx context.Context, req *agentv1.CancelRequest) (*agentv1.CancelResponse, error) {
	cancel := c.cancel
	if req.GetMemberId() != "" {
		cancel = c.cancelMember
	}
	cancelled, running, err := cancel(ctx, req)
	if err != nil {
		return nil, err
	}
	c.nudge(ctx, running...)
	res := &agentv1.CancelResponse{}
	for _, r := range cancelled {
		res.RunIds = append(res.RunIds, r.String())
	}
	return res, nil
}

func (c *conversations) cancel(ctx context.Context, req *agentv1.CancelRequest) (cancelled, running []id.Run, err error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, nil, err
	}
	target := conversation.Target{All: req.GetAll()}
	if req.GetRunId() != "" {
		if target.Only, err = id.Parse[id.Run](req.GetRunId()); err != nil {
			return nil, nil, fault.New(fault.Invalid, "run_id: %v", err)
		}
	}
	return c.store.Cancel(ctx, actor, session, target)
}

func (c *conversations) cancelMember(ctx context.Context, req *agentv1.CancelRequest) (cancelled, running []id.Run, err error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, nil, err
	}
	member, err := id.Parse[id.Member](req.GetMemberId())
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "member_id: %v", err)
	}
	if member != actor.Member && actor.Role < identity.Owner {
		return nil, nil, fault.New(fault.Forbidden, "only owners stop other people's runs")
	}
	return c.store.CancelMember(ctx, actor, member)
}

// Withdraw implements ConversationService.
func (c *conversations) Withdraw(ctx context.Context, req *agentv1.WithdrawRequest) (*agentv1.WithdrawResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	message, err := conversation.RefOf(&agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: req.GetMessageId()}})
	if err != nil {
		return nil, err
	}
	return &agentv1.WithdrawResponse{}, c.store.Withdraw(ctx, actor, session, message.Message)
}

// Move implements ConversationService.
func (c *conversations) Move(ctx context.Context, req *agentv1.MoveRequest) (*agentv1.MoveResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	message, err := conversation.RefOf(&agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: req.GetMessageId()}})
	if err != nil {
		return nil, err
	}
	mode := modeOf(req.GetMode())
	if mode == conversation.Reject {
		return nil, fault.New(fault.Invalid, "mode must be queue or steer")
	}
	r, err := c.store.Move(ctx, actor, session, message.Message, mode)
	if err != nil {
		return nil, err
	}
	if mode == conversation.Steer {
		c.nudge(ctx, r.ID)
	}
	return &agentv1.MoveResponse{Run: r.Proto()}, nil
}

// models implements ModelService.
type models struct {
	providers *provider.Providers
}

func (m *models) ListModels(ctx context.Context, _ *agentv1.ListModelsRequest) (*agentv1.ListModelsResponse, error) {
	all, problems, err := m.providers.Models(ctx)
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListModelsResponse{}
	for _, known := range all {
		out := &agentv1.Model{
			Provider: known.Provider, Id: known.ID, Name: known.Name, Context: int32(known.Context), MaxOutput: int32(known.MaxOutput),
			Tools: known.Tools, Images: known.Images, Reasoning: known.Reasoning, WebSearch: known.WebSearch, Simulated: known.Simulated, Default: known.Default,
		}
		if c := known.Prices; c != nil {
			out.Prices = &agentv1.ModelPrices{Input: c.Input, Output: c.Output, CacheRead: c.CacheRead, CacheWrite: c.CacheWrite}
		}
		res.Models = append(res.Models, out)
	}
	for _, p := range problems {
		res.Problems = append(res.Problems, &agentv1.ProviderProblem{Provider: p.Provider, Reason: p.Reason})
	}
	return res, nil
}

// usage implements UsageService.
type usage struct {
	budgets *budget.Store
}

func (u *usage) GetUsage(ctx context.Context, req *agentv1.GetUsageRequest) (*agentv1.GetUsageResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	q := budget.UsageQuery{By: req.GetBy(), From: req.GetFrom().AsTime(), To: req.GetTo().AsTime()}
	if actor.Role < identity.Owner {
		q.Member = &actor.Member
	}
	rows, more, err := u.budgets.Usage(ctx, actor, q)
	if err != nil {
		return nil, err
	}
	res := &agentv1.GetUsageResponse{More: more}
	for _, r := range rows {
		res.Groups = append(res.Groups, &agentv1.UsageGroup{
			Key: r.Key, Calls: r.Calls, InputTokens: r.Input, CacheReadTokens: r.CacheRead, CacheWriteTokens: r.CacheWrite,
			OutputTokens: r.Output, ReasoningTokens: r.Reasoning, WastedTokens: r.Wasted, CostMicros: r.CostMicros, UnpricedCalls: r.Unpriced,
			ToolCalls: r.ToolCalls, Errors: r.Errors, DurationMs: r.DurationMilliseconds,
		})
	}
	return res, nil
}

func (u *usage) ListBudgets(ctx context.Context, _ *agentv1.ListBudgetsRequest) (*agentv1.ListBudgetsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	all, err := u.budgets.List(ctx, actor)
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListBudgetsResponse{}
	for i := range all {
		res.Budgets = append(res.Budgets, budgetOf(&all[i]))
	}
	return res, nil
}

func (u *usage) SetBudget(ctx context.Context, req *agentv1.SetBudgetRequest) (*agentv1.SetBudgetResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	b := budget.Budget{Scope: req.GetScope(), Tokens: req.Tokens, CostMicros: req.CostMicros, Steps: req.Steps, Seconds: req.Seconds}
	if req.GetSubject() != "" {
		subject, err := id.Parse[id.Member](req.GetSubject()) // or a session
		if err != nil {
			return nil, fault.New(fault.Invalid, "subject: %v", err)
		}
		b.Subject = &subject.UUID
	}
	set, err := u.budgets.Set(ctx, actor, b)
	if err != nil {
		return nil, err
	}
	return &agentv1.SetBudgetResponse{Budget: budgetOf(set)}, nil
}

func (u *usage) DeleteBudget(ctx context.Context, req *agentv1.DeleteBudgetRequest) (*agentv1.DeleteBudgetResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	b, err := id.Parse[id.Operation](req.GetId())
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no such budget")
	}
	return &agentv1.DeleteBudgetResponse{}, u.budgets.Delete(ctx, actor, b.UUID)
}

func budgetOf(b *budget.Budget) *agentv1.Budget {
	out := &agentv1.Budget{
		Id: b.ID.String(), Scope: b.Scope, Tokens: b.Tokens, CostMicros: b.CostMicros, Steps: b.Steps, Seconds: b.Seconds,
		CreatedBy: b.CreatedBy.String(), CreatedAt: timestamppb.New(b.CreatedAt),
	}
	if b.Subject != nil {
		out.Subject = b.Subject.String()
	}
	if b.Used != nil {
		out.Used = &agentv1.BudgetUse{Tokens: b.Used.Tokens, CostMicros: b.Used.CostMicros, Steps: b.Used.Steps, Seconds: int64(b.Used.Time.Seconds())}
	}
	return out
}

// runs implements RunService.
type runs struct {
	store   *conversation.Store
	archive *archive.Archive
}

func (r *runs) GetRun(ctx context.Context, req *agentv1.GetRunRequest) (*agentv1.GetRunResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	runID, err := id.Parse[id.Run](req.GetId())
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no such run")
	}
	v, err := r.store.Run(ctx, actor, runID)
	if err != nil {
		return nil, err
	}
	res := &agentv1.GetRunResponse{Run: v.Run.Proto()}
	res.Run.EndWaits, res.Run.FullText, res.Run.CostMicros = v.EndWaits, v.Text, v.CostMicros
	for _, s := range v.Steps {
		res.Steps = append(res.Steps, stepOf(&s))
	}
	for _, c := range v.Calls {
		call := callOf(v.Run.ID, &c)
		if i := slices.IndexFunc(v.Approvals, func(p conversation.Approval) bool { return p.Key == c.Key }); i >= 0 {
			call.Approval = approvalOf(&v.Approvals[i])
		}
		res.ToolCalls = append(res.ToolCalls, call)
	}
	return res, nil
}

func (r *runs) ListRuns(ctx context.Context, req *agentv1.ListRunsRequest) (*agentv1.ListRunsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	q := conversation.RunQuery{Token: req.GetPageToken(), Limit: int(req.GetPageSize())}
	if req.GetSessionId() != "" {
		if q.Session, err = id.Parse[id.Session](req.GetSessionId()); err != nil {
			return nil, fault.New(fault.Invalid, "session_id: %v", err)
		}
	}
	for _, state := range req.GetStates() {
		name, known := agentv1.RunState_name[int32(state)]
		if !known || state == agentv1.RunState_RUN_STATE_UNSPECIFIED || len(q.States) > len(agentv1.RunState_name) {
			return nil, fault.New(fault.Invalid, "states: has one that is unknown")
		}
		q.States = append(q.States, run.State(strings.ToLower(strings.TrimPrefix(name, "RUN_STATE_"))))
	}
	page, next, err := r.store.Runs(ctx, actor, q)
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListRunsResponse{NextPageToken: next}
	for i := range page {
		out := page[i].Proto()
		out.Text, out.SessionTitle, out.CostMicros = "", page[i].SessionTitle, page[i].CostMicros
		res.Runs = append(res.Runs, out)
	}
	return res, nil
}

func (r *runs) GetTrace(ctx context.Context, req *agentv1.GetTraceRequest) (*agentv1.GetTraceResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	runID, err := id.Parse[id.Run](req.GetId())
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no such run")
	}
	session, ordinal, err := r.store.PlaceOf(ctx, actor, runID)
	if err != nil {
		return nil, err
	}
	return r.archive.Trace(ctx, actor.Workspace, session, ordinal)
}

func (r *runs) ListEvents(ctx context.Context, req *agentv1.ListEventsRequest) (*agentv1.ListEventsResponse, error) {
	actor, session, err := authorize(ctx, identity.Viewer, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	return r.archive.List(ctx, actor.Workspace, archive.Query{
		Session: session, Run: req.GetRunOrdinal(), Number: req.GetNumber(), Token: req.GetPageToken(),
	})
}

// authorize returns the caller, who must have at least the given role, and the parsed
// session id. A malformed id is reported as NotFound.
func authorize(ctx context.Context, least identity.Role, session string) (identity.Actor, id.Session, error) {
	actor, err := identity.Require(ctx, least)
	if err != nil {
		return actor, id.Session{}, err
	}
	s, err := id.Parse[id.Session](session)
	if err != nil {
		return actor, s, fault.New(fault.NotFound, "there is no such session")
	}
	return actor, s, nil
}

func figuresOf(r conversation.RunOf) *agentv1.RunFigures {
	out := &agentv1.RunFigures{RunId: r.ID.String(), Usage: r.Proto(), CostMicros: r.CostMicros}
	if r.StartedAt != nil {
		out.StartedAt = timestamppb.New(*r.StartedAt)
	}
	if r.EndedAt != nil {
		out.EndedAt = timestamppb.New(*r.EndedAt)
	}
	for _, c := range r.Calls {
		out.Calls = append(out.Calls, callFiguresOf(c))
	}
	return out
}

func callFiguresOf(c conversation.CallFigures) *agentv1.CallFigures {
	out := &agentv1.CallFigures{StepIndex: int32(c.StepIndex), ToolCallId: c.ToolCallID, DurationMs: c.DurationMS}
	if c.Decision == "" {
		return out
	}
	out.Decision, out.DecisionReason = decisionProto(c.Decision), c.DecisionReason
	if c.DecidedBy != nil {
		out.DecidedBy = c.DecidedBy.String()
	}
	if c.DecidedAt != nil {
		out.DecidedAt = timestamppb.New(*c.DecidedAt)
	}
	return out
}

func messageOf(session id.Session, m *run.Message, of conversation.RunOf) *agentv1.Message {
	out := &agentv1.Message{
		Id: m.ID.String(), SessionId: session.String(), Role: m.Role, ContentJson: string(m.Content),
		TokensIn: m.TokensIn, TokensOut: m.TokensOut, Model: m.Model, CreatedAt: timestamppb.New(m.CreatedAt),
		Simulated: m.Role != "user" && of.Simulated, Interrupted: m.Interrupted,
	}
	switch {
	case m.SteeredBy != nil:
		out.CreatedBy = m.SteeredBy.String()
	case m.Role == "user" && of.CreatedBy != id.Member{}:
		out.CreatedBy = of.CreatedBy.String()
	}
	if !id.IsZero(m.Run) { // otherwise the session was created with it
		out.RunId = m.Run.String()
	}
	if m.StepIndex != nil {
		step := int32(*m.StepIndex)
		out.StepIndex = &step
	}
	return out
}

func stepOf(s *conversation.Step) *agentv1.Step {
	out := &agentv1.Step{
		Index: int32(s.StepIndex), FinishReason: s.FinishReason, Usage: s.Usage.Proto(), Wasted: s.Wasted.Proto(),
	}
	if s.CommittedAt != nil {
		out.CommittedAt = timestamppb.New(*s.CommittedAt)
	}
	out.CostMicros, out.WastedCostMicros = s.CostMicros, s.WastedCostMicros
	return out
}

func callOf(r id.Run, c *conversation.ToolCall) *agentv1.ToolCall {
	out := &agentv1.ToolCall{
		StepIndex: int32(c.StepIndex), ToolCallId: c.ToolCallID, ToolName: c.ToolName, ArgsJson: string(c.Args), Phase: c.Phase,
		Effect: toolv1.Effect(toolv1.Effect_value["EFFECT_"+strings.ToUpper(c.Effect)]),
	}
	if !c.PlannedAt.IsZero() {
		out.PlannedAt = timestamppb.New(c.PlannedAt)
	}
	if c.DoneAt != nil {
		out.DoneAt = timestamppb.New(*c.DoneAt)
	}
	if c.ClientUntil != nil {
		out.ClientUntil = timestamppb.New(*c.ClientUntil)
	}
	if c.Result != nil {
		out.Outcome = &toolv1.Outcome{
			Key: c.Key.String(), RunId: r.String(), ToolCallId: c.ToolCallID, ToolName: c.ToolName,
			State:      toolv1.OutcomeState(toolv1.OutcomeState_value["OUTCOME_STATE_"+strings.ToUpper(c.State)]),
			ResultJson: string(*c.Result), DurationMs: c.DurationMS, ErrorType: c.ErrorType, Summary: c.Summary,
		}
	}
	return out
}
