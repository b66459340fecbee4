package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// question is a tool call that waits for a person.
type question struct {
	RunID, ToolCallID, ToolName, Reason string
	Args                                json.RawMessage
	OutcomeUnknown                      bool
}

// String returns the question for a person.
func (q question) String() string {
	call := q.ToolName + " " + clip(string(q.Args), 1000)
	if q.OutcomeUnknown {
		return "? " + call + "\n  It is unknown whether this happened. Look, then type y if it did, or n to do it again."
	}
	return "? " + call + "\n  " + q.Reason + ". Type y to approve it, or n and why to refuse it."
}

// answer returns the body of the answer that was typed; ok is false if it is none.
func (q question) answer(typed string) (body map[string]any, ok bool) {
	word, reason, _ := strings.Cut(strings.TrimSpace(typed), " ")
	word, reason = strings.ToLower(strings.TrimRight(word, ",:.")), strings.TrimSpace(reason)
	yes := word == "y" || word == "yes"
	switch {
	case !yes && word != "n" && word != "no", yes && reason != "":
		return nil, false
	case q.OutcomeUnknown && yes:
		body = map[string]any{"outcome": "happened"}
	case q.OutcomeUnknown:
		body = map[string]any{"outcome": "repeat"}
	default:
		body = map[string]any{"approved": yes}
	}
	if reason != "" {
		body["reason"] = reason
	}
	if q.RunID != "" { // a gateway of an earlier version does not say it
		body["run_id"] = q.RunID
	}
	return body, true
}

// questions are the open questions of an answer, oldest first.
type questions struct {
	mu   sync.Mutex // guards open
	open []question
}

// add adds a question, and remove removes that about a call.
func (q *questions) add(asked question) {
	q.remove(asked.ToolCallID)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = append(q.open, asked)
}

func (q *questions) remove(call string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var left []question
	for _, o := range q.open {
		if o.ToolCallID != call {
			left = append(left, o)
		}
	}
	q.open = left
}

func (q *questions) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = nil
}

// first returns the oldest open question.
func (q *questions) first() (question, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.open) == 0 {
		return question{}, false
	}
	return q.open[0], true
}

// Decide answers the question about a tool call.
func (c *Client) Decide(ctx context.Context, session, call string, body map[string]any) error {
	if err := c.call(ctx, http.MethodPost, sessionPath(session)+"/approvals/"+url.PathEscape(call), body, nil); err != nil {
		return fmt.Errorf("answer about the tool call: %w", err)
	}
	return nil
}

// asked returns the question of a tool-approval-request.
func (d event) asked() question {
	return question{d.RunID, d.ToolCallID, d.ToolName, d.Reason, d.Args, d.OutcomeUnknown}
}

// clientRequest says that a call waits for a client, which this one is not.
func (d event) clientRequest() string {
	return "… " + d.ToolName + " runs in the client that declared it, and waits for its result until " + d.ExpiresAt
}

// decided says how a question was answered.
func (d event) decided() string {
	line := d.ToolName + " was " + d.Decision
	switch d.Decision {
	case "happened":
		line = d.ToolName + " happened, a person says"
	case "repeat":
		line = d.ToolName + " is done again"
	case "expired":
		line = "nobody approved " + d.ToolName + " in time"
	}
	if d.Reason != "" {
		line += ": " + d.Reason
	}
	return line
}
