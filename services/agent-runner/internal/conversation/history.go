package conversation

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// maxEarlier bounds the messages with which a session is created.
const maxEarlier = 1000

// earlier is a message with which a session is created. It belongs to no run: its run_id is zero.
type earlier struct {
	Role    string
	Content json.RawMessage
}

// readHistory checks the messages with which a session is created. Providers refuse a
// conversation in which a tool call has no result, so that this does too.
func (s *Store) readHistory(in []*agentv1.EarlierMessage) ([]earlier, error) {
	if len(in) > maxEarlier {
		return nil, fault.New(fault.Invalid, "history has %d messages; at most %d are allowed", len(in), maxEarlier)
	}
	var out []earlier
	open := map[string]bool{} // calls without a result so far
	size := 0
	for i, m := range in {
		e := earlier{m.GetRole(), json.RawMessage(m.GetContentJson())}
		if size += len(e.Content); size > s.cfg.MaxBytes {
			return nil, fault.Coded(fault.TooLarge, "SESSION_FULL", "history has more than %d MiB: send fewer messages", s.cfg.MaxBytes>>20)
		}
		if len(open) > 0 && e.Role != "tool" {
			return nil, fault.New(fault.Invalid, "history[%d]: the tool calls before it have no results", i)
		}
		var err error
		switch e.Role {
		case "user":
			e.Content, err = modelmsg.Input(e.Content, s.cfg.Content)
		case "assistant", "tool":
			err = e.checkParts(open)
		default:
			err = fault.New(fault.Invalid, "role must be user, assistant or tool")
		}
		if err != nil {
			return nil, fault.New(fault.Invalid, "history[%d]: %s", i, fault.From(err).Message)
		}
		out = append(out, e)
	}
	if len(open) > 0 {
		return nil, fault.New(fault.Invalid, "history: its last tool calls have no results")
	}
	return out, nil
}

// checkParts checks a message of the assistant or of tools, and updates the open calls.
func (e *earlier) checkParts(open map[string]bool) error {
	if !json.Valid(e.Content) {
		return fault.New(fault.Invalid, "the content is not JSON")
	}
	parts, err := modelmsg.Parse(e.Content)
	if err != nil {
		return fault.New(fault.Invalid, "%s", err)
	}
	for i := range parts {
		switch p := &parts[i]; {
		case e.Role == "assistant" && p.Type == modelmsg.Text:
		case e.Role == "assistant" && p.Type == modelmsg.ToolCall && !open[p.ToolCallID]:
			open[p.ToolCallID] = true
		case e.Role == "tool" && p.Type == modelmsg.ToolResult && open[p.ToolCallID]:
			delete(open, p.ToolCallID)
		default:
			return fault.New(fault.Invalid, "a part of the type %.20q is not possible here", p.Type)
		}
	}
	return nil
}

func insertHistory(ctx context.Context, tx pgx.Tx, session *Session, history []earlier) error {
	if len(history) == 0 {
		return nil
	}
	ids, roles, contents := make([]id.Message, len(history)), make([]string, len(history)), make([]string, len(history))
	for i, e := range history {
		ids[i], roles[i], contents[i] = id.New[id.Message](), e.Role, string(e.Content)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO messages (id, workspace_id, session_id, run_id, position, role, content, created_at)
		SELECT m.id, @workspace, @session, @norun, m.position, m.role, m.content::json, @now
		FROM unnest(@ids::uuid[], @roles::text[], @contents::text[]) WITH ORDINALITY AS m (id, role, content, position)`,
		pg.Args{
			"workspace": session.Workspace, "session": session.ID, "norun": id.Run{}, "now": session.CreatedAt,
			"ids": ids, "roles": roles, "contents": contents,
		})
	if err != nil {
		return fmt.Errorf("insert the history: %w", err)
	}
	return nil
}
