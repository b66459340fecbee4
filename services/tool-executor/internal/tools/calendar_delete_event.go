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

//go:embed calendar_delete_event.md
var calendarDeleteEventPage string

type calendarDeleteArgs struct {
	ID         string `json:"id"`
	CalendarID string `json:"calendar_id"`
	Notify     bool   `json:"notify"`
}

// success is the result of a deletion.
type success struct {
	Success   bool `json:"success"`
	Simulated bool `json:"simulated,omitempty"`
}

// calendarDeleteEvent is keyed by the event's own id, which Google gives to no other event: it
// refuses to delete an event a second time, and that is success.
func calendarDeleteEvent(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "calendar_delete_event", Effect: toolv1.Effect_EFFECT_KEYED, NeedsApproval: true, ActsOutside: true,
	}.Describe(calendarDeleteEventPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a calendarDeleteArgs) (tool.Result, error) {
		path, err := calendarPath(a.CalendarID, a.ID)
		if err != nil {
			return tool.Result{}, err
		}
		reply, err := d.Egress.Do(ctx, egress.Request{
			Provider: google, Method: http.MethodDelete, Path: path, Query: url.Values{"sendUpdates": {sendUpdates(a.Notify)}},
		}, nil)
		if err != nil && !egress.HasCode(err, egress.CodeGone) {
			return tool.Result{}, err
		}
		return tool.Object(success{true, reply.Simulated}), nil
	}, func(a calendarDeleteArgs) string { return a.ID }).When(d.googleReady), err
}
