package agentrunner

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/run"
)

// approvals implements ApprovalService.
type approvals struct {
	store *conversation.Store
	log   *slog.Logger
}

// Decide implements ApprovalService.
func (p *approvals) Decide(ctx context.Context, req *agentv1.DecideRequest) (*agentv1.DecideResponse, error) {
	actor, session, err := authorize(ctx, identity.Editor, req.GetSessionId())
	if err != nil {
		return nil, err
	}
	decision := decisionOf(req.GetDecision())
	switch decision {
	case run.Approved, run.Refused, run.Happened, run.Repeat:
	default:
		return nil, fault.New(fault.Invalid, "decision: answer approved, refused, happened or repeat")
	}
	answer := conversation.Answer{
		Session: session, ToolCallID: req.GetToolCallId(), Decision: decision, Reason: req.GetReason(),
		Remember: rememberOf(req.GetRemember()),
	}
	if at := req.GetAskedAt(); at != nil {
		answer.AskedAt = new(at.AsTime())
	}
	if answer.Run, err = optionalRun(req.GetRunId()); err != nil {
		return nil, err
	}
	decided, err := p.store.Decide(ctx, actor, answer)
	if err != nil {
		return nil, err
	}
	p.log.InfoContext(ctx, "tool call decided", "workspace", actor.Workspace, "session", session, "run", decided.Run, "key", decided.Key,
		"tool", decided.ToolName, "decision", string(decided.Decision), "member", actor.Member)
	return &agentv1.DecideResponse{Approval: approvalOf(decided)}, nil
}

// ListApprovals implements ApprovalService.
func (p *approvals) ListApprovals(ctx context.Context, req *agentv1.ListApprovalsRequest) (*agentv1.ListApprovalsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	q := conversation.ApprovalQuery{Token: req.GetPageToken(), Limit: int(req.GetLimit())}
	if req.GetSessionId() != "" {
		if q.Session, err = id.Parse[id.Session](req.GetSessionId()); err != nil {
			return nil, fault.New(fault.Invalid, "session_id: %v", err)
		}
	}
	page, next, err := p.store.Approvals(ctx, actor, q)
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListApprovalsResponse{NextPageToken: next}
	for i := range page {
		res.Approvals = append(res.Approvals, approvalOf(&page[i]))
	}
	return res, nil
}

// CreateRule implements ApprovalService.
func (p *approvals) CreateRule(ctx context.Context, req *agentv1.CreateRuleRequest) (*agentv1.CreateRuleResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	r := conversation.Rule{ToolName: req.GetToolName(), Effect: run.RuleEffect(strings.ToLower(strings.TrimPrefix(req.GetEffect().String(), "RULE_EFFECT_")))}
	if req.GetSessionId() != "" {
		session, err := id.Parse[id.Session](req.GetSessionId())
		if err != nil {
			return nil, fault.New(fault.Invalid, "session_id: %v", err)
		}
		r.SessionID = &session
	}
	if req.GetArgsJson() != "" {
		args := json.RawMessage(req.GetArgsJson())
		r.Args = &args
	}
	made, err := p.store.CreateRule(ctx, actor, r)
	if err != nil {
		return nil, err
	}
	p.log.InfoContext(ctx, "approval rule made", "workspace", actor.Workspace, "rule", made.ID, "tool", made.ToolName, "effect", string(made.Effect), "member", actor.Member)
	return &agentv1.CreateRuleResponse{Rule: ruleOf(made)}, nil
}

// ListRules implements ApprovalService.
func (p *approvals) ListRules(ctx context.Context, req *agentv1.ListRulesRequest) (*agentv1.ListRulesResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	page, next, err := p.store.Rules(ctx, actor, req.GetPageToken(), int(req.GetLimit()))
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListRulesResponse{NextPageToken: next}
	for i := range page {
		res.Rules = append(res.Rules, ruleOf(&page[i]))
	}
	return res, nil
}

// DeleteRule implements ApprovalService.
func (p *approvals) DeleteRule(ctx context.Context, req *agentv1.DeleteRuleRequest) (*agentv1.DeleteRuleResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	rule, err := id.Parse[id.Operation](req.GetId())
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no such approval rule")
	}
	if err := p.store.DeleteRule(ctx, actor, rule); err != nil {
		return nil, err
	}
	p.log.InfoContext(ctx, "approval rule deleted", "workspace", actor.Workspace, "rule", rule, "member", actor.Member)
	return &agentv1.DeleteRuleResponse{}, nil
}

func ruleOf(r *conversation.Rule) *agentv1.Rule {
	out := &agentv1.Rule{
		Id: r.ID.String(), ToolName: r.ToolName, CreatedBy: r.CreatedBy.String(), CreatedAt: timestamppb.New(r.CreatedAt),
		Effect: agentv1.RuleEffect(agentv1.RuleEffect_value["RULE_EFFECT_"+strings.ToUpper(string(r.Effect))]),
	}
	if r.SessionID != nil {
		out.SessionId = r.SessionID.String()
	}
	if r.Args != nil {
		out.ArgsJson = string(*r.Args)
	}
	return out
}

func rememberOf(r agentv1.Remember) conversation.Remember {
	switch r {
	case agentv1.Remember_REMEMBER_ARGUMENTS:
		return conversation.SameArguments
	case agentv1.Remember_REMEMBER_SESSION:
		return conversation.ThisSession
	case agentv1.Remember_REMEMBER_WORKSPACE:
		return conversation.ThisWorkspace
	default:
		return conversation.ThisCall
	}
}

func decisionOf(d agentv1.Decision) run.Decision {
	return run.Decision(strings.ToLower(strings.TrimPrefix(d.String(), "DECISION_")))
}

func decisionProto(d run.Decision) agentv1.Decision {
	return agentv1.Decision(agentv1.Decision_value["DECISION_"+strings.ToUpper(string(d))])
}

func approvalOf(p *conversation.Approval) *agentv1.Approval {
	out := &agentv1.Approval{
		SessionId: p.Session.String(), SessionTitle: p.SessionTitle, RunId: p.Run.String(), StepIndex: int32(p.StepIndex),
		ToolCallId: p.ToolCallID, ToolName: p.ToolName, ArgsJson: string(p.Args),
		Question: agentv1.Question(agentv1.Question_value["QUESTION_"+strings.ToUpper(string(p.Question))]),
		Reason:   p.Why, AskedAt: timestamppb.New(p.AskedAt), AskedFor: p.AskedFor.String(),
		Decision: decisionProto(p.Decision), DecisionReason: p.DecisionReason,
	}
	if p.ExpiresAt != nil {
		out.ExpiresAt = timestamppb.New(*p.ExpiresAt)
	}
	if p.DecidedAt != nil {
		out.DecidedAt = timestamppb.New(*p.DecidedAt)
	}
	if p.DecidedBy != nil {
		out.DecidedBy = p.DecidedBy.String()
	}
	return out
}
