package api

import (
	"context"
	"encoding/json"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) toolResults() {
	handle(a, op("send-tool-result", "POST /api/sessions/{id}/tool-results/{tool_call_id}", "Messages", "Send the result of a tool that a client runs",
		about("Answers a tool-client-request, from any client of the session; the run goes on at once. The same result again changes nothing; "+
			"a different one, and one that comes too late, is answered with 409. A result is 64 KiB at most.")), editors, a.sendToolResult)
}

// ClientTool is a tool that clients run: the model calls it, and the run waits until a client
// has sent the result.
type ClientTool struct {
	Name        string          `json:"name" minLength:"1" maxLength:"64" example:"get_location" doc:"1 to 64 letters, digits, _ and -; not the name of another tool."`
	Description string          `json:"description,omitempty" maxLength:"4000" doc:"What the model is told."`
	InputSchema json.RawMessage `json:"input_schema" doc:"A JSON Schema of type object without references outside of it, of 64 KiB at most. Calls satisfy it."`
}

// declared distinguishes an empty list of tools from none given.
func declared(tools []ClientTool) *agentv1.ClientTools {
	if tools == nil {
		return nil
	}
	return &agentv1.ClientTools{Tools: each(tools, func(t ClientTool) *agentv1.ClientTool {
		return &agentv1.ClientTool{Name: t.Name, Description: t.Description, InputSchemaJson: string(t.InputSchema)}
	})}
}

// ToolResultBody is the body of POST /api/sessions/{id}/tool-results/{tool_call_id}: output or
// error.
type ToolResultBody struct {
	Output json.RawMessage `json:"output,omitempty" doc:"Any JSON value."`
	Error  string          `json:"error,omitempty" doc:"What went wrong, for the model."`
	RunID  string          `json:"run_id,omitempty" format:"uuid" doc:"The run of the call, because models repeat the ids of calls. Absent: the call that waits."`
	Step   *int32          `json:"step_index,omitempty" minimum:"0" doc:"The step of the call, for the same reason: a result that comes too late does not become that of a later call."`
}

type toolResultOutputBody struct {
	RunID    string   `json:"run_id" format:"uuid"`
	ToolCall ToolCall `json:"tool_call"`
}

// optionalRun checks a run's id, which may be empty.
func optionalRun(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	run, err := parseID[id.Run]("run_id", s)
	return run.String(), err
}

func (a *API) sendToolResult(ctx context.Context, in *struct {
	SessionPath
	ToolCallID string `path:"tool_call_id" maxLength:"512" doc:"The toolCallId of the request."`
	Repeatable
	Body ToolResultBody
},
) (*toolResultOutputBody, error) {
	if (in.Body.Output == nil) == (in.Body.Error == "") {
		return nil, invalid("output: want either output (any JSON value) or error (a text)")
	}
	run, err := optionalRun(in.Body.RunID)
	if err != nil {
		return nil, err
	}
	req := &agentv1.SendToolResultRequest{SessionId: in.ID.String(), ToolCallId: in.ToolCallID, RunId: run, StepIndex: in.Body.Step, Result: &agentv1.SendToolResultRequest_OutputJson{OutputJson: string(in.Body.Output)}}
	if in.Body.Error != "" {
		req.Result = &agentv1.SendToolResultRequest_Error{Error: in.Body.Error}
	}
	res, err := a.cfg.Conversations.SendToolResult(ctx, req)
	return answer(res, err, func(res *agentv1.SendToolResultResponse) toolResultOutputBody {
		return toolResultOutputBody{res.GetRunId(), viewToolCall(res.GetToolCall())}
	})
}
