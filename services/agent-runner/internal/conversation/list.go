package conversation

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Query says which sessions to list.
type Query struct {
	// ByUpdate lists the most recently changed sessions first, in place of the newest ones.
	ByUpdate bool
	Before   time.Time // zero for the first page, and with ByUpdate
	Token    string    // with ByUpdate: from the previous page
	Limit    int
	// Words that the title or a message has. In a message they are the beginnings of its words.
	Words    string
	Archived bool
	State    run.State // of Session; empty for all
}

// Found is a session of a list.
type Found struct {
	Session
	Match string // the passage of its newest message with the words; empty if none has them
	// Of the newest run that has begun; nil if none has.
	RunID    *id.Run
	RunState *run.State
	RunSteps *int32
}

// Proto returns the session as other services see it.
func (f *Found) Proto() *agentv1.Session {
	out := f.Session.Proto()
	out.Match = f.Match
	if f.RunID != nil {
		out.LastRun = &agentv1.SessionRun{Id: f.RunID.String(), State: f.RunState.Proto(), Steps: *f.RunSteps}
	}
	return out
}

// Limits of a query.
const (
	maxQuery = 200
	maxWords = 16
)

func (q *Query) check() error {
	if q.Limit < 0 || q.Limit > 100 {
		return fault.New(fault.Invalid, "limit must be 1 to 100")
	}
	switch q.State {
	case "", idle, run.Queued, run.Running, run.Waiting:
	default:
		return fault.New(fault.Invalid, "state must be idle, queued, running or waiting")
	}
	if n := len(strings.Fields(q.Words)); n > maxWords {
		return fault.New(fault.Invalid, "the query has %d words; at most %d are allowed", n, maxWords)
	}
	if q.ByUpdate && !q.Before.IsZero() {
		return fault.New(fault.Invalid, "by_update has pages by page_token: before must be empty")
	}
	return checkText("query", q.Words, maxQuery, false)
}

// List returns a page of sessions, whether there are more and, with ByUpdate, the token of the next page.
func (s *Store) List(ctx context.Context, a identity.Actor, q Query) (page []Found, more bool, next string, err error) {
	if err := q.check(); err != nil {
		return nil, false, "", err
	}
	q.Limit = cmp.Or(q.Limit, 20)
	args := pg.Args{
		"workspace": a.Workspace, "limit": q.Limit + 1, "archived": q.Archived, "state": string(q.State),
		"words": likeWords(q.Words), "search": beginnings(q.Words), "before": nil, "id": nil,
	}
	after, order := "created_at < @before", "created_at DESC"
	if q.ByUpdate {
		after, order = "(updated_at, id) < (@before, @id::uuid)", "updated_at DESC, id DESC"
		if q.Token != "" {
			if q.Before, args["id"], err = parseToken(q.Token); err != nil {
				return nil, false, "", err
			}
		}
	}
	if !q.Before.IsZero() {
		args["before"] = q.Before
	}
	narrow := "true"
	if q.State != "" && q.State != idle { // a constant, so that the partial indexes of runs serve it
		narrow = "id IN (SELECT session_id FROM runs WHERE workspace_id = @workspace AND state = '" + string(q.State) + "')"
	}
	b := &pgx.Batch{}
	// The policy of message_words shows the rows that this matches, and no others.
	b.Queue(`SELECT set_config('signalbox.search', to_tsquery('simple', @search)::text, true)`, args)
	b.Queue(`
		WITH said AS MATERIALIZED (
			SELECT DISTINCT ON (session_id) session_id, message_id FROM message_words
			WHERE workspace_id = @workspace ORDER BY session_id, message_id DESC
		)
		SELECT `+columns+`, coalesce((
				SELECT ts_headline('simple', message_text(m.content), current_setting('signalbox.search')::tsquery,
					'StartSel="", StopSel="", MaxFragments=1, MinWords=8, MaxWords=24')
				FROM messages m WHERE m.workspace_id = @workspace AND m.id = (SELECT message_id FROM said WHERE session_id = sessions.id)), '') AS match,
			newest.run_id, newest.run_state, newest.run_steps
		FROM sessions LEFT JOIN LATERAL (
			SELECT r.id AS run_id, r.state AS run_state, r.steps AS run_steps FROM runs r
			WHERE r.workspace_id = sessions.workspace_id AND r.session_id = sessions.id AND r.epoch > 0
			ORDER BY r.ordinal DESC LIMIT 1
		) newest ON true
		WHERE workspace_id = @workspace AND archived = @archived AND (@before::timestamptz IS NULL OR `+after+`)
			AND (title ILIKE ALL (@words::text[]) OR id IN (SELECT session_id FROM said)) AND `+narrow+`
			AND (@state = '' OR `+state+` = @state)
		ORDER BY `+order+` LIMIT @limit`, args).Query(pg.Collect(&page))
	if err := s.db.ReadInWorkspace(ctx, a.Workspace, b); err != nil {
		return nil, false, "", fmt.Errorf("list sessions: %w", err)
	}
	if more = len(page) > q.Limit; more {
		page = page[:q.Limit]
		if last := &page[q.Limit-1]; q.ByUpdate {
			next = tokenOf(last.UpdatedAt, last.ID)
		}
	}
	for i := range page {
		page[i].Match = strings.Join(strings.Fields(page[i].Match), " ")
	}
	return page, more, next, nil
}

// likeWords returns one LIKE pattern for each word of a query.
func likeWords(q string) []string {
	patterns := []string{}
	for w := range strings.FieldsSeq(q) {
		patterns = append(patterns, pg.Containing(w))
	}
	return patterns
}

// beginnings returns a text search query for texts in which a word begins with each word of q.
func beginnings(q string) string {
	escape := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	var terms []string
	for w := range strings.FieldsSeq(q) {
		terms = append(terms, "'"+escape.Replace(w)+"':*")
	}
	return strings.Join(terms, " & ")
}
