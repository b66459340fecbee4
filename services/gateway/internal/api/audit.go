package api

import (
	"context"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) audit() {
	handle(a, op("list-audit", "GET /api/audit", "Approvals", "Read who approved tool calls, and who changed rules and budgets, newest first",
		about("Rows are never changed or deleted, also when their session is. They do not have the arguments of calls. The credentials' audit log is at /api/accounts/audit, that of MCP servers at /api/mcp-servers/audit.")),
		owners, a.listAudit)
}

// Decision is a row of the audit.
type Decision struct {
	ID        string  `json:"id" format:"uuid"`
	At        string  `json:"at" format:"date-time"`
	MemberID  *string `json:"member_id" format:"uuid" doc:"Null if nobody answered in time."`
	Action    string  `json:"action" enum:"call-approved,call-refused,call-expired,call-happened,call-repeat,rule-set,rule-deleted,budget-set,budget-deleted"`
	Subject   string  `json:"subject" doc:"The tool_call_id, or the id of the rule or budget."`
	Tool      *string `json:"tool"`
	SessionID *string `json:"session_id" format:"uuid"`
	RunID     *string `json:"run_id" format:"uuid"`
	Detail    *string `json:"detail" doc:"The reason of an answer, the effect of a rule, or the limits of a budget."`
}

func viewDecision(r *agentv1.AuditRow) Decision {
	return Decision{
		ID: r.GetId(), At: stamp(r.GetAt()), MemberID: orNull(r.GetMemberId()), Action: r.GetAction(), Subject: r.GetSubject(), Tool: orNull(r.GetToolName()),
		SessionID: orNull(r.GetSessionId()), RunID: orNull(r.GetRunId()), Detail: orNull(r.GetDetail()),
	}
}

type decisionsOutputBody struct {
	Audit      []Decision `json:"audit" nullable:"false"`
	NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listAudit(ctx context.Context, in *ServicePage) (*decisionsOutputBody, error) {
	res, err := a.cfg.Audit.ListAudit(ctx, &agentv1.ListAuditRequest{PageToken: in.Cursor, Limit: in.Limit})
	return answer(res, err, func(res *agentv1.ListAuditResponse) decisionsOutputBody {
		return decisionsOutputBody{each(res.GetRows(), viewDecision), orNull(res.GetNextPageToken())}
	})
}
