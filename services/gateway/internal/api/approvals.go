package api

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) approvals() {
	const tag = "Approvals"
	handle(a, op("list-approvals", "GET /api/approvals", tag, "List the tool calls that wait for a person, oldest first"), viewers, a.listApprovals)
	handle(a, op("decide-approval", "POST /api/sessions/{id}/approvals/{tool_call_id}", tag, "Approve or refuse a tool call that waits",
		about("The run goes on at once. The same answer again changes nothing; a different one, and one that comes too late, is answered with 409. "+
			"To a call that ran and whose outcome is unknown, answer with outcome instead of approved. API keys cannot answer: a person decides.")),
		editors.inPerson(), a.decide)
	handle(a, op("list-approval-rules", "GET /api/approval-rules", tag, "List the rules that answer for people, newest first"), viewers, a.listRules)
	handle(a, op("create-approval-rule", "POST /api/approval-rules", tag, "Create a rule about the calls of a tool", created,
		about("It replaces a rule with the same session, tool and args. A rule that denies wins over one that allows. Once a conversation has both "+
			"private data and text by strangers, only a rule with args allows a call that acts outside.")),
		editors.inPerson(), a.createRule)
	handle(a, op("delete-approval-rule", "DELETE /api/approval-rules/{id}", tag, "Delete a rule"), editors.inPerson(), a.deleteRule)
}

// Approval is a question to a person about a tool call, and the answer.
type Approval struct {
	SessionID      string          `json:"session_id" format:"uuid"`
	SessionTitle   string          `json:"session_title"`
	RunID          string          `json:"run_id" format:"uuid"`
	StepIndex      int32           `json:"step_index"`
	ToolCallID     string          `json:"tool_call_id"`
	ToolName       string          `json:"tool_name"`
	Args           json.RawMessage `json:"args"`
	Question       string          `json:"question" enum:"approval,outcome" doc:"approval: may the call run? outcome: it ran, and its outcome is unknown: did it happen?"`
	Reason         string          `json:"reason" doc:"Why a person is asked."`
	AskedFor       string          `json:"asked_for" format:"uuid" doc:"The member whose message the run answers."`
	AskedAt        string          `json:"asked_at" format:"date-time"`
	ExpiresAt      *string         `json:"expires_at" format:"date-time" doc:"When no answer becomes a refusal."`
	Decision       *string         `json:"decision" enum:"approved,refused,expired,happened,repeat,rule" doc:"Null while the call waits. rule: a rule allowed the call, and nobody was asked."`
	DecisionReason *string         `json:"decision_reason"`
	DecidedBy      *string         `json:"decided_by" format:"uuid"`
	DecidedAt      *string         `json:"decided_at" format:"date-time"`
}

func viewApproval(p *agentv1.Approval) Approval {
	return Approval{
		SessionID: p.GetSessionId(), SessionTitle: p.GetSessionTitle(), RunID: p.GetRunId(), StepIndex: p.GetStepIndex(),
		ToolCallID: p.GetToolCallId(), ToolName: p.GetToolName(), Args: objectOrEmpty(p.GetArgsJson()), Question: enumName(p.GetQuestion()),
		Reason: p.GetReason(), AskedFor: p.GetAskedFor(), AskedAt: stamp(p.GetAskedAt()), ExpiresAt: stampOrNull(p.GetExpiresAt()),
		Decision: orNull(enumName(p.GetDecision())), DecisionReason: orNull(p.GetDecisionReason()), DecidedBy: orNull(p.GetDecidedBy()),
		DecidedAt: stampOrNull(p.GetDecidedAt()),
	}
}

type approvalsOutputBody struct {
	Approvals  []Approval `json:"approvals" nullable:"false"`
	NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listApprovals(ctx context.Context, in *struct {
	ServicePage
	SessionID string `query:"session_id" doc:"Only those of one session."`
},
) (*approvalsOutputBody, error) {
	if in.SessionID != "" {
		if _, err := parseID[id.Session]("session_id", in.SessionID); err != nil {
			return nil, err
		}
	}
	res, err := a.cfg.Approvals.ListApprovals(ctx, &agentv1.ListApprovalsRequest{PageToken: in.Cursor, Limit: in.Limit, SessionId: in.SessionID})
	return answer(res, err, func(res *agentv1.ListApprovalsResponse) approvalsOutputBody {
		return approvalsOutputBody{each(res.GetApprovals(), viewApproval), orNull(res.GetNextPageToken())}
	})
}

// Decide is the body of POST /api/sessions/{id}/approvals/{tool_call_id}: approved or outcome.
type Decide struct {
	Approved *bool  `json:"approved,omitempty" doc:"To a call that waits for approval."`
	Outcome  string `json:"outcome,omitempty" enum:"happened,repeat" doc:"To a call whose outcome is unknown: it happened, or it did not and shall run again."`
	Reason   string `json:"reason,omitempty" maxLength:"1000" doc:"For the model and the session's viewers."`
	AskedAt  string `json:"asked_at,omitempty" format:"date-time" doc:"The asked_at of the question that is answered. If another question was asked since about a call with this id, the answer is refused with 409, so that a repeated request cannot answer it. Absent: the question that waits."`
	RunID    string `json:"run_id,omitempty" format:"uuid" doc:"The run of the call, because models repeat the ids of calls. Absent: the call that waits."`
	Remember string `json:"remember,omitempty" enum:"arguments,session,workspace" doc:"Answer later calls of the tool in the same way, without asking: those with the same arguments in this session, all in this session, or all in the workspace (for owners)."`
}

// decision converts a body.
func (d *Decide) decision() (agentv1.Decision, error) {
	switch {
	case (d.Approved == nil) == (d.Outcome == ""):
		return 0, invalid("approved: want either approved (true or false) or outcome (happened or repeat)")
	case d.Outcome != "":
		return oneOf[agentv1.Decision]("outcome", d.Outcome, "DECISION_", agentv1.Decision_value, "happened", "repeat")
	case *d.Approved:
		return agentv1.Decision_DECISION_APPROVED, nil
	}
	return agentv1.Decision_DECISION_REFUSED, nil
}

// oneOf returns the enum's value of a public name, which must be one of names.
func oneOf[E ~int32](field, name, prefix string, values map[string]int32, names ...string) (E, error) {
	if !slices.Contains(names, name) {
		return 0, invalid("%s: want %s", field, strings.Join(names, ", "))
	}
	return E(values[prefix+strings.ToUpper(name)]), nil
}

type approvalOutputBody struct {
	Approval Approval `json:"approval"`
}

func (a *API) decide(ctx context.Context, in *struct {
	SessionPath
	ToolCallID string `path:"tool_call_id" maxLength:"512" doc:"The toolCallId of the request."`
	Repeatable
	Body Decide
},
) (*approvalOutputBody, error) {
	decision, err := in.Body.decision()
	if err != nil {
		return nil, err
	}
	if err := checkText("reason", in.Body.Reason, 1000); err != nil {
		return nil, err
	}
	req := &agentv1.DecideRequest{SessionId: in.ID.String(), ToolCallId: in.ToolCallID, Decision: decision, Reason: in.Body.Reason}
	if req.RunId, err = optionalRun(in.Body.RunID); err != nil {
		return nil, err
	}
	if in.Body.AskedAt != "" {
		at, err := time.Parse(time.RFC3339Nano, in.Body.AskedAt)
		if err != nil {
			return nil, invalid("asked_at: want the asked_at of an approval, such as 2026-01-31T12:00:00.123456Z")
		}
		req.AskedAt = timestamppb.New(at)
	}
	if in.Body.Remember != "" {
		if req.Remember, err = oneOf[agentv1.Remember]("remember", in.Body.Remember, "REMEMBER_", agentv1.Remember_value, "arguments", "session", "workspace"); err != nil {
			return nil, err
		}
	}
	res, err := a.cfg.Approvals.Decide(ctx, req)
	return answer(res, err, func(res *agentv1.DecideResponse) approvalOutputBody {
		return approvalOutputBody{viewApproval(res.GetApproval())}
	})
}

// ApprovalRule is what people have decided about later calls of a tool.
type ApprovalRule struct {
	ID        string          `json:"id" format:"uuid"`
	SessionID *string         `json:"session_id" format:"uuid" doc:"Null: all sessions of the workspace."`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args" doc:"The arguments that a call must have; null for any."`
	Effect    string          `json:"effect" enum:"allow,deny,ask"`
	CreatedBy string          `json:"created_by" format:"uuid"`
	CreatedAt string          `json:"created_at" format:"date-time"`
}

func viewRule(r *agentv1.Rule) ApprovalRule {
	v := ApprovalRule{
		ID: r.GetId(), SessionID: orNull(r.GetSessionId()), Tool: r.GetToolName(), Args: json.RawMessage("null"), Effect: enumName(r.GetEffect()),
		CreatedBy: r.GetCreatedBy(), CreatedAt: stamp(r.GetCreatedAt()),
	}
	if r.GetArgsJson() != "" {
		v.Args = objectOrEmpty(r.GetArgsJson())
	}
	return v
}

type rulesOutputBody struct {
	Rules      []ApprovalRule `json:"rules" nullable:"false"`
	NextCursor *string        `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listRules(ctx context.Context, in *ServicePage) (*rulesOutputBody, error) {
	res, err := a.cfg.Approvals.ListRules(ctx, &agentv1.ListRulesRequest{PageToken: in.Cursor, Limit: in.Limit})
	return answer(res, err, func(res *agentv1.ListRulesResponse) rulesOutputBody {
		return rulesOutputBody{each(res.GetRules(), viewRule), orNull(res.GetNextPageToken())}
	})
}

// CreateApprovalRule is the body of POST /api/approval-rules.
type CreateApprovalRule struct {
	Tool      string          `json:"tool" minLength:"1" maxLength:"128"`
	Effect    string          `json:"effect" enum:"allow,deny,ask" doc:"allow: nobody is asked. deny: the call is refused. ask: a person is asked, whether or not the tool needs it."`
	SessionID string          `json:"session_id,omitempty" format:"uuid" doc:"Absent: all sessions of the workspace, for owners."`
	Args      json.RawMessage `json:"args,omitempty" doc:"An object that the call's arguments equal, in any order of the fields. Absent: any arguments."`
}

type ruleOutputBody struct {
	Rule ApprovalRule `json:"rule"`
}

func (a *API) createRule(ctx context.Context, in *struct {
	Repeatable
	Body CreateApprovalRule
},
) (*ruleOutputBody, error) {
	effect, err := oneOf[agentv1.RuleEffect]("effect", in.Body.Effect, "RULE_EFFECT_", agentv1.RuleEffect_value, "allow", "deny", "ask")
	if err != nil {
		return nil, err
	}
	if in.Body.Tool == "" {
		return nil, invalid("tool is required")
	}
	if err := checkText("tool", in.Body.Tool, 128); err != nil {
		return nil, err
	}
	req := &agentv1.CreateRuleRequest{ToolName: in.Body.Tool, Effect: effect}
	if in.Body.SessionID != "" {
		session, err := parseID[id.Session]("session_id", in.Body.SessionID)
		if err != nil {
			return nil, err
		}
		req.SessionId = session.String()
	}
	if args := bytes.TrimSpace(in.Body.Args); len(args) > 0 && !bytes.Equal(args, []byte("null")) {
		if args[0] != '{' {
			return nil, invalid("args: want an object")
		}
		req.ArgsJson = string(args)
	}
	res, err := a.cfg.Approvals.CreateRule(ctx, req)
	return answer(res, err, func(res *agentv1.CreateRuleResponse) ruleOutputBody { return ruleOutputBody{viewRule(res.GetRule())} })
}

func (a *API) deleteRule(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"64" doc:"The rule's id."`
	Repeatable
},
) (*Success, error) {
	rule, err := parseID[id.Operation]("id", in.ID)
	if err != nil {
		return nil, err
	}
	_, err = a.cfg.Approvals.DeleteRule(ctx, &agentv1.DeleteRuleRequest{Id: rule.String()})
	return succeeded(), err
}
