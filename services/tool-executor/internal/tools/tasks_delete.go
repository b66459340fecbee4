package tools

import (
	"context"
	_ "embed"
	"net/http"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed tasks_delete.md
var tasksDeletePage string

// tasksDelete can be looked up by its own effect: Google says that the task is deleted.
func tasksDelete(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "tasks_delete", Effect: toolv1.Effect_EFFECT_VERIFY, Settle: d.taskSettle(), NeedsApproval: true, ActsOutside: true,
	}.Describe(tasksDeletePage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a taskArgs) (tool.Result, error) {
		_, reply, err := d.oneTask(ctx, http.MethodDelete, a, nil)
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(success{true, reply.Simulated}), nil
	}, func(a taskArgs) string { return a.ID }).When(d.googleReady).Verified(func(ctx context.Context, _ tool.Call, a taskArgs) (tool.Result, bool, error) {
		t, reply, err := d.oneTask(ctx, http.MethodGet, a, nil)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			return tool.Result{}, false, nil // there was none: running the call says so
		case err != nil || !t.Deleted:
			return tool.Result{}, false, err
		}
		return tool.Object(success{true, reply.Simulated}), true, nil
	}), err
}
