package api

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) usage() {
	const tag = "Usage and budgets"
	handle(a, op("get-usage", "GET /api/usage", tag, "Sum up usage by day, model, member, session or tool",
		about("Owners see the usage of the whole workspace, other members their own.")), viewers, a.getUsage)
	handle(a, op("list-budgets", "GET /api/budgets", tag, "List the workspace's budgets"), viewers, a.listBudgets)
	handle(a, op("set-budget", "PUT /api/budgets", tag, "Create a budget, or change its limits",
		about("A workspace has one budget for each scope and subject. Budgets of the scopes workspace and member are for each day in UTC, those of session and run in total. "+
			"A run looks at its budgets before each step. If one is spent, the run ends with the finish reason budget-tokens, budget-cost, budget-steps or budget-time."+
			" Running time is while a run is worked on, with its tools; it does not include waiting for a person.")), owners, a.setBudget)
	handle(a, op("delete-budget", "DELETE /api/budgets/{id}", tag, "Delete a budget"), owners, a.deleteBudget)
}

// UsageGroup is the usage of one day, model, member, session or tool.
type UsageGroup struct {
	Key              string `json:"key" doc:"The day in UTC, provider/model, both with a space between them (day-model), the id of the member or session (empty for sessions of an earlier version), or the name of the tool."`
	Calls            int64  `json:"calls" doc:"Model calls; in groups by tool, tool calls."`
	InputTokens      int64  `json:"input_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens" doc:"Of the input tokens, those that the provider read from its cache."`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	OutputTokens     int64  `json:"output_tokens"`
	ReasoningTokens  int64  `json:"reasoning_tokens" doc:"Of the output tokens."`
	WastedTokens     int64  `json:"wasted_tokens" doc:"Of the input and output tokens, those of calls that broke off."`
	CostMicros       int64  `json:"cost_micros" doc:"In millionths of a dollar, of the calls with a known price."`
	UnpricedCalls    int64  `json:"unpriced_calls" doc:"Calls without a known price."`
	ToolCalls        int64  `json:"tool_calls"`
	Errors           int64  `json:"errors" doc:"Groups by tool only: calls that failed."`
	DurationMS       int64  `json:"duration_ms" doc:"Groups by tool only: the time that all calls took."`
}

type usageOutputBody struct {
	Usage      []UsageGroup `json:"usage" nullable:"false" doc:"Days in order; other groups by cost and tokens, the most first."`
	More       bool         `json:"more" doc:"There are more than 1,000 groups: ask for a shorter time."`
	NextCursor *string      `json:"next_cursor" doc:"Always null: the list has one page."`
}

// defaultUsage is the time before now that usage is summed up over.
const defaultUsage = 30 * 24 * time.Hour

func (a *API) getUsage(ctx context.Context, in *struct {
	By   string    `query:"by" enum:"day,model,day-model,member,session,tool" default:"day"`
	From time.Time `query:"from" doc:"Included; 30 days before to if absent. At most 366 days before to."`
	To   time.Time `query:"to" doc:"Not included; now if absent."`
},
) (*usageOutputBody, error) {
	if in.To.IsZero() {
		in.To = time.Now()
	}
	if in.From.IsZero() {
		in.From = in.To.Add(-defaultUsage)
	}
	res, err := a.cfg.Usage.GetUsage(ctx, &agentv1.GetUsageRequest{By: in.By, From: timestamppb.New(in.From), To: timestamppb.New(in.To)})
	return &usageOutputBody{Usage: each(res.GetGroups(), viewUsageGroup), More: res.GetMore()}, err
}

func viewUsageGroup(g *agentv1.UsageGroup) UsageGroup {
	return UsageGroup{
		g.GetKey(), g.GetCalls(), g.GetInputTokens(), g.GetCacheReadTokens(), g.GetCacheWriteTokens(), g.GetOutputTokens(), g.GetReasoningTokens(),
		g.GetWastedTokens(), g.GetCostMicros(), g.GetUnpricedCalls(), g.GetToolCalls(), g.GetErrors(), g.GetDurationMs(),
	}
}

// Budget limits what the workspace spends on runs.
type Budget struct {
	ID         string     `json:"id" format:"uuid"`
	Scope      string     `json:"scope" enum:"workspace,member,session,run"`
	Subject    *string    `json:"subject" format:"uuid" doc:"The member or session; null if each one has a budget of its own."`
	Tokens     *int64     `json:"tokens" doc:"Input and output tokens; null for no limit."`
	CostMicros *int64     `json:"cost_micros" doc:"In millionths of a dollar; null for no limit. Calls without a known price count as free."`
	Steps      *int64     `json:"steps" doc:"Model calls; null for no limit."`
	Seconds    *int64     `json:"seconds" doc:"Running time; null for no limit."`
	Period     string     `json:"period" enum:"day,total" doc:"day: the budget begins anew at midnight UTC."`
	Used       *BudgetUse `json:"used" doc:"What the subject has spent in this period; for a budget of each member, what you have. Null for a budget of each session or run."`
	CreatedBy  string     `json:"created_by" format:"uuid"`
	CreatedAt  string     `json:"created_at" format:"date-time"`
}

// BudgetUse is what was spent of a budget.
type BudgetUse struct {
	Tokens     int64 `json:"tokens"`
	CostMicros int64 `json:"cost_micros"`
	Steps      int64 `json:"steps"`
	Seconds    int64 `json:"seconds"`
}

func viewBudget(b *agentv1.Budget) Budget {
	v := Budget{
		ID: b.GetId(), Scope: b.GetScope(), Subject: orNull(b.GetSubject()), Tokens: b.Tokens, CostMicros: b.CostMicros, Steps: b.Steps, Seconds: b.Seconds, Period: "total",
		CreatedBy: b.GetCreatedBy(), CreatedAt: stamp(b.GetCreatedAt()),
	}
	if b.GetScope() == "workspace" || b.GetScope() == "member" {
		v.Period = "day"
	}
	if u := b.GetUsed(); u != nil {
		v.Used = &BudgetUse{u.GetTokens(), u.GetCostMicros(), u.GetSteps(), u.GetSeconds()}
	}
	return v
}

type budgetsOutputBody struct {
	Budgets    []Budget `json:"budgets" nullable:"false"`
	NextCursor *string  `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) listBudgets(ctx context.Context, _ *struct{}) (*budgetsOutputBody, error) {
	res, err := a.cfg.Usage.ListBudgets(ctx, &agentv1.ListBudgetsRequest{})
	return &budgetsOutputBody{Budgets: each(res.GetBudgets(), viewBudget)}, err
}

// SetBudget is the body of PUT /api/budgets.
type SetBudget struct {
	Scope      string `json:"scope" enum:"workspace,member,session,run"`
	Subject    string `json:"subject,omitempty" doc:"The id of a member or session; without it, each one gets a budget of its own."`
	Tokens     *int64 `json:"tokens,omitempty" minimum:"0"`
	CostMicros *int64 `json:"cost_micros,omitempty" minimum:"0"`
	Steps      *int64 `json:"steps,omitempty" minimum:"0"`
	Seconds    *int64 `json:"seconds,omitempty" minimum:"0"`
}

type budgetOutputBody struct {
	Budget Budget `json:"budget"`
}

func (a *API) setBudget(ctx context.Context, in *struct {
	Body SetBudget
	Repeatable
},
) (*budgetOutputBody, error) {
	b := in.Body
	res, err := a.cfg.Usage.SetBudget(ctx, &agentv1.SetBudgetRequest{Scope: b.Scope, Subject: b.Subject, Tokens: b.Tokens, CostMicros: b.CostMicros, Steps: b.Steps, Seconds: b.Seconds})
	return answer(res, err, func(r *agentv1.SetBudgetResponse) budgetOutputBody {
		return budgetOutputBody{viewBudget(r.GetBudget())}
	})
}

// budgetID is the id of a budget.
type budgetID struct{ uuid.UUID }

func (a *API) deleteBudget(ctx context.Context, in *struct {
	ID ID[budgetID] `path:"id" format:"uuid" doc:"The budget's id."`
	Repeatable
},
) (*Success, error) {
	_, err := a.cfg.Usage.DeleteBudget(ctx, &agentv1.DeleteBudgetRequest{Id: in.ID.String()})
	return succeeded(), err
}
