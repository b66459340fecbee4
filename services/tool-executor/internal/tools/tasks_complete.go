package tools

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed tasks_complete.md
var tasksCompletePage string

type taskArgs struct {
	ID     string `json:"id"`
	ListID string `json:"list_id"`
}

// tasksComplete can be looked up by its own effect: the task is completed.
func tasksComplete(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "tasks_complete", Effect: toolv1.Effect_EFFECT_VERIFY, Settle: d.taskSettle(), NeedsApproval: true, ReadsUntrusted: true, ReadsPrivate: true, ActsOutside: true,
	}.Describe(tasksCompletePage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a taskArgs) (tool.Result, error) {
		t, reply, err := d.oneTask(ctx, http.MethodPatch, a, gtask{Status: taskCompleted})
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(t.view(reply)), nil
	}, func(a taskArgs) string { return a.ID }).When(d.googleReady).Verified(func(ctx context.Context, _ tool.Call, a taskArgs) (tool.Result, bool, error) {
		t, reply, err := d.oneTask(ctx, http.MethodGet, a, nil)
		if err != nil || t.Status != taskCompleted {
			return tool.Result{}, false, err
		}
		return tool.Object(t.view(reply)), true, nil
	}), err
}

// oneTask sends a request about a task and returns the task.
func (d Deps) oneTask(ctx context.Context, method string, a taskArgs, body any) (t gtask, reply egress.Reply, err error) {
	path, err := tasksPath(a.ListID, a.ID)
	if err != nil {
		return t, reply, err
	}
	reply, err = d.taskCall(ctx, egress.Request{Method: method, Path: path, Query: url.Values{"fields": {taskFields}}, Body: body}, &t)
	return t, reply, err
}
