package archive

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Bounds of a trace. What is beyond them is left out, and the trace says so.
const (
	maxTraceBytes = 32 << 20
	maxMoments    = 10_000
)

// Trace returns the attempts and moments of a run, as far as the copy has them.
func (a *Archive) Trace(ctx context.Context, ws id.Workspace, session id.Session, run int64) (*agentv1.GetTraceResponse, error) {
	t := &trace{out: &agentv1.GetTraceResponse{}, number: -1}
	var after int64
	for size := 0; !t.out.GetTruncated(); {
		type chunk struct {
			ID     int64
			Events []byte
		}
		var rows []chunk
		err := a.cfg.DB.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
			found, err := tx.Query(ctx, `
				SELECT id, events FROM run_log
				WHERE workspace_id = @workspace AND session_id = @session AND run_ordinal = @run AND id > @after
				ORDER BY id LIMIT @limit`,
				pg.Args{"workspace": ws, "session": session, "run": run, "after": after, "limit": rowsAtOnce})
			if err != nil {
				return err
			}
			rows, err = pgx.CollectRows(found, pgx.RowToStructByName[chunk])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the trace: %w", err)
		}
		for _, r := range rows {
			after = r.ID
			if size += len(r.Events); size > maxTraceBytes || len(t.out.GetMoments()) >= maxMoments {
				t.out.Truncated = true
				break
			}
			var events agentv1.ListEventsResponse
			if err := proto.Unmarshal(r.Events, &events); err != nil {
				return nil, fmt.Errorf("row %d of the run log: %w", r.ID, err)
			}
			for _, e := range events.GetEvents() {
				t.add(e.GetEvent())
			}
		}
		if len(rows) < rowsAtOnce {
			break
		}
	}
	return t.out, nil
}

// trace makes attempts and moments of events.
type trace struct {
	out           *agentv1.GetTraceResponse
	epoch, number int64                  // of the newest event
	last          *timestamppb.Timestamp // when it was
	open          *agentv1.Attempt       // the attempt that has not ended
}

// add adds the next event of the log. Those of outdated claims and duplicates are dropped.
func (t *trace) add(e *runv1.Event) {
	if e.GetEpoch() < t.epoch || e.GetNumber() <= t.number {
		return
	}
	kind, detail, call := describe(e)
	t.moment(e, kind, detail, call)
	switch b := e.GetBody().(type) {
	case *runv1.Event_StepRetry:
		if t.open == nil { // its model call had said nothing, or was answered
			t.begin(e)
		}
		t.open.VoidReason = b.StepRetry.GetReason()
		t.end(t.last)
	case *runv1.Event_TextDelta, *runv1.Event_ReasoningDelta, *runv1.Event_ToolCallStart, *runv1.Event_ToolCallDelta, *runv1.Event_Source, *runv1.Event_Citation:
		t.begin(e)
		if t.open.FirstOutputAt == nil {
			t.open.FirstOutputAt = e.GetTime()
		}
	case *runv1.Event_Compaction:
		t.begin(e)
		t.end(e.GetTime())
	case *runv1.Event_ToolCallComplete:
		if !b.ToolCallComplete.GetProviderExecuted() {
			t.end(e.GetTime())
		}
	case *runv1.Event_StepComplete, *runv1.Event_Done, *runv1.Event_Error:
		t.end(e.GetTime())
	}
	t.epoch, t.number, t.last = e.GetEpoch(), e.GetNumber(), e.GetTime()
}

// begin opens an attempt unless one is open.
func (t *trace) begin(e *runv1.Event) {
	if t.open != nil {
		return
	}
	started := t.last
	if started == nil {
		started = e.GetTime()
	}
	t.open = &agentv1.Attempt{StepIndex: e.GetStepIndex(), Epoch: e.GetEpoch(), StartedAt: started}
	t.out.Attempts = append(t.out.Attempts, t.open)
}

func (t *trace) end(at *timestamppb.Timestamp) {
	if t.open != nil {
		t.open.EndedAt, t.open = at, nil
	}
}

func (t *trace) moment(e *runv1.Event, kind, detail, call string) {
	if n := len(t.out.GetMoments()); n > 0 {
		m := t.out.GetMoments()[n-1]
		delta := kind == "text_delta" || kind == "reasoning_delta" || kind == "tool_call_delta"
		if delta && m.GetKind() == kind && m.GetEpoch() == e.GetEpoch() && m.GetStepIndex() == e.GetStepIndex() && m.GetToolCallId() == call {
			m.Count++
			m.Until = e.GetTime()
			return
		}
	}
	t.out.Moments = append(t.out.Moments, &agentv1.Moment{
		Kind: kind, Epoch: e.GetEpoch(), StepIndex: e.GetStepIndex(), Number: e.GetNumber(), Count: 1, Time: e.GetTime(), Detail: detail, ToolCallId: call,
	})
}

// describe returns the kind of an event, what people want to know of it, and its tool call. An
// event that says that the run is parked has a kind of its own.
func describe(e *runv1.Event) (kind, detail, call string) {
	m := e.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	if field == nil {
		return "unknown", "", ""
	}
	body := m.Get(field).Message()
	text := func(name string) string {
		f := body.Descriptor().Fields().ByName(protoreflect.Name(name))
		if f == nil || f.Kind() != protoreflect.StringKind {
			return ""
		}
		return body.Get(f).String()
	}
	for _, name := range []string{"tool_name", "reason", "finish_reason", "message", "model", "title", "url"} {
		if detail = text(name); detail != "" {
			break
		}
	}
	if w := e.GetWaiting(); w.GetForPerson() || w.GetForClient() || w.GetForRunner() {
		return "parked", detail, ""
	}
	return string(field.Name()), detail, text("tool_call_id")
}
