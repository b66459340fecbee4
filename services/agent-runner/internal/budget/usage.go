package budget

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// groups are the expressions that usage can be summed by.
var groups = map[string]string{
	"day":   `to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')`,
	"model": `provider || '/' || model`,
	// Without the model a chart of days could not say what a day's cost was for.
	"day-model": `to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') || ' ' || provider || '/' || model`,
	"member":    `member_id::text`,
	"session":   `coalesce(session_id::text, '')`,
}

// ByTool sums up tool calls instead of model calls.
const ByTool = "tool"

// Bounds of a query for usage.
const (
	maxRange = 366 * 24 * time.Hour
	maxRows  = 1000
)

// UsageQuery selects usage. From is included, To is not.
type UsageQuery struct {
	By       string // day, model, day-model, member, session or tool
	From, To time.Time
	// Member restricts the usage to that of one member; nil for all.
	Member *id.Member
}

// UsageRow is the usage of one group. Errors and DurationMilliseconds are for groups by tool,
// which have no tokens and no cost.
type UsageRow struct {
	Key                                     string
	Calls                                   int64 // model calls, or tool calls
	Input, CacheRead, CacheWrite            int64
	Output, Reasoning                       int64
	Wasted                                  int64 // tokens, of those above, of calls that broke off
	CostMicros                              int64 // of the calls with a known price
	Unpriced                                int64 // calls without a known price
	ToolCalls, Errors, DurationMilliseconds int64
}

// Usage returns usage by group: days (and models of days) in order, everything else by cost and
// tokens, the most first. more is true if there are more groups than are returned.
func (s *Store) Usage(ctx context.Context, a identity.Actor, q UsageQuery) (rows []UsageRow, more bool, err error) {
	group, ok := groups[q.By]
	switch {
	case !ok && q.By != ByTool:
		return nil, false, fault.New(fault.Invalid, "by must be day, model, day-model, member, session or tool")
	case !q.From.Before(q.To):
		return nil, false, fault.New(fault.Invalid, "from must be before to")
	case q.To.Sub(q.From) > maxRange:
		return nil, false, fault.New(fault.Invalid, "from and to must not be more than %d days apart", maxRange/(24*time.Hour))
	}
	order := `9 DESC, sum(input_tokens + output_tokens) DESC, 1`
	if q.By == "day" || q.By == "day-model" {
		order = `1`
	}
	statement := `
		SELECT ` + group + `, count(*) FILTER (WHERE NOT wasted), sum(input_tokens)::bigint, sum(cache_read_tokens)::bigint,
			sum(cache_write_tokens)::bigint, sum(output_tokens)::bigint, sum(reasoning_tokens)::bigint,
			coalesce(sum(input_tokens + output_tokens) FILTER (WHERE wasted), 0)::bigint,
			coalesce(sum(cost_micros), 0)::bigint, count(*) FILTER (WHERE cost_micros IS NULL), sum(tool_calls)::bigint, 0::bigint, 0::bigint
		FROM usage
		WHERE workspace_id = @workspace AND created_at >= @from AND created_at < @to AND (@member::uuid IS NULL OR member_id = @member)
		GROUP BY 1 ORDER BY ` + order + ` LIMIT @limit`
	if q.By == ByTool {
		statement = `
			SELECT t.tool_name, count(*), 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, count(*),
				count(*) FILTER (WHERE t.phase = 'done' AND t.state <> 'ok'), coalesce(sum(t.duration_ms), 0)::bigint
			FROM tool_calls t JOIN runs r ON r.id = t.run_id
			WHERE t.workspace_id = @workspace AND t.planned_at >= @from AND t.planned_at < @to AND (@member::uuid IS NULL OR r.created_by = @member)
			GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT @limit`
	}
	b := &pgx.Batch{}
	b.Queue(statement, pg.Args{"workspace": a.Workspace, "from": q.From, "to": q.To, "member": q.Member, "limit": maxRows + 1}).
		Query(func(r pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(r, pgx.RowToStructByPos[UsageRow])
			return err
		})
	if err := s.db.ReadInWorkspace(ctx, a.Workspace, b); err != nil {
		return nil, false, fmt.Errorf("read usage: %w", err)
	}
	if more = len(rows) > maxRows; more {
		rows = rows[:maxRows]
	}
	return rows, more, nil
}
