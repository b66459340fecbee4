package api

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/gateway/internal/store"
)

func (a *API) audit() {
	handle(a, op("list-audit", "GET /api/audit", "Approvals", "Read who approved tool calls, and who changed rules, budgets, members, API keys and links to documents, newest first",
		about("Rows are never changed or deleted, also when their session is. They do not have the arguments of calls. The credentials' audit log is at /api/accounts/audit, that of MCP servers at /api/mcp-servers/audit.")),
		owners, a.listAudit)
}

// Decision is a row of the audit.
type Decision struct {
	ID        string  `json:"id" format:"uuid"`
	At        string  `json:"at" format:"date-time"`
	MemberID  *string `json:"member_id" format:"uuid" doc:"Who did it; null if nobody answered in time."`
	Action    string  `json:"action" enum:"call-approved,call-refused,call-expired,call-happened,call-repeat,rule-set,rule-deleted,budget-set,budget-deleted,member-invited,invitation-withdrawn,member-joined,member-added,role-changed,member-removed,key-created,key-revoked,browser-signed-out,link-created,link-revoked" doc:"member-joined: by an invitation or a domain. browser-signed-out: a member signed out another of their browsers. link-…: of a share link to a document."`
	Subject   string  `json:"subject" doc:"The tool_call_id, the e-mail address that was invited or that joined, or the id of the rule, budget, member, key, browser session or document."`
	Tool      *string `json:"tool"`
	SessionID *string `json:"session_id" format:"uuid"`
	RunID     *string `json:"run_id" format:"uuid"`
	Detail    *string `json:"detail" doc:"The reason of an answer, the effect of a rule, the limits of a budget, the role of a member, the name of a key, or the id of a share link."`
}

// auditRow is a row with its place among those of agent-runner and of the gateway.
type auditRow struct {
	store.Place
	Decision
}

func decisionRow(r *agentv1.AuditRow) auditRow {
	row, _ := uuid.Parse(r.GetId()) // always an id
	return auditRow{store.Place{At: r.GetAt().AsTime(), ID: row}, Decision{
		ID: r.GetId(), At: stamp(r.GetAt()), MemberID: orNull(r.GetMemberId()), Action: r.GetAction(), Subject: r.GetSubject(), Tool: orNull(r.GetToolName()),
		SessionID: orNull(r.GetSessionId()), RunID: orNull(r.GetRunId()), Detail: orNull(r.GetDetail()),
	}}
}

func changeRow(c store.Change) auditRow {
	return auditRow{store.Place{At: c.At, ID: c.ID}, Decision{
		ID: c.ID.String(), At: timeStamp(c.At), MemberID: orNull(c.Member.String()), Action: c.Action, Subject: c.Subject, Detail: orNull(c.Detail),
	}}
}

type decisionsOutputBody struct {
	Audit      []Decision `json:"audit" nullable:"false"`
	NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
}

// listAudit merges agent-runner's audit and the gateway's own. The cursor is the place of the last
// row that was returned, which is valid in both.
func (a *API) listAudit(ctx context.Context, in *struct {
	ServicePage
	AuditSearch
},
) (*decisionsOutputBody, error) {
	named, err := a.membersIn(ctx, in.AuditSearch)
	if err != nil {
		return nil, err
	}
	before, err := parsePlace(in.Cursor)
	if err != nil {
		return nil, err
	}
	var decided *agentv1.ListAuditResponse
	var changed []store.Change
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		decided, err = a.cfg.Audit.ListAudit(ctx, &agentv1.ListAuditRequest{
			PageToken: in.Cursor, Limit: in.Limit, Query: in.Query, QueryMembers: each(named, id.Member.String),
		})
		return err
	})
	both.Go(func() (err error) {
		changed, err = a.cfg.Store.Audit(ctx, principalOf(ctx).Actor.Workspace, store.AuditQuery{
			Before: before, Limit: int(in.Limit) + 1, Text: in.Query, Members: named,
		})
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	rows := append(each(decided.GetRows(), decisionRow), each(changed, changeRow)...)
	slices.SortFunc(rows, func(a, b auditRow) int {
		return -cmp.Or(a.Place.At.Compare(b.Place.At), bytes.Compare(a.Place.ID[:], b.Place.ID[:]))
	})
	out := &decisionsOutputBody{}
	if n := int(in.Limit); len(rows) > n || len(rows) > 0 && decided.GetNextPageToken() != "" {
		rows = rows[:min(n, len(rows))]
		last := rows[len(rows)-1].Place
		out.NextCursor = orNull(last.At.UTC().Format(time.RFC3339Nano) + "_" + last.ID.String())
	}
	out.Audit = each(rows, func(r auditRow) Decision { return r.Decision })
	return out, nil
}

// AuditSearch selects rows of an audit.
type AuditSearch struct {
	Query string `query:"q" maxLength:"200" doc:"What the name or the e-mail address of the member who did it, or the text of a row contains, in any case."`
}

// membersIn returns the members whom a search names.
func (a *API) membersIn(ctx context.Context, s AuditSearch) ([]id.Member, error) {
	if err := checkText("q", s.Query, 200); err != nil || s.Query == "" {
		return nil, err
	}
	return a.cfg.Store.PeopleLike(ctx, principalOf(ctx).Actor.Workspace, s.Query)
}

// parsePlace parses a cursor, which is also agent-runner's page token.
func parsePlace(cursor string) (p store.Place, err error) {
	if cursor == "" {
		return p, nil
	}
	at, row, _ := strings.Cut(cursor, "_")
	var badTime, badID error
	p.At, badTime = time.Parse(time.RFC3339Nano, at)
	p.ID, badID = uuid.Parse(row)
	if badTime != nil || badID != nil {
		return store.Place{}, invalid("cursor is not one that this API has returned")
	}
	return p, nil
}
