package tools

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed tasks_create.md
var tasksCreatePage string

type tasksCreateArgs struct {
	Title  string `json:"title"`
	Notes  string `json:"notes"`
	Due    string `json:"due"`
	ListID string `json:"list_id"`
}

const (
	lookBack    = 24 * time.Hour // how old a task can be that a call has created
	maxLookups  = 10             // pages
	lookupPages = "100"          // tasks of a page
)

// tasksCreate leaves a marker in the last line of the task's notes, since Google Tasks takes no
// key: a repeated call looks for it among the tasks that were changed lately.
func tasksCreate(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "tasks_create", Effect: toolv1.Effect_EFFECT_VERIFY, Settle: d.taskSettle(), NeedsApproval: true, ActsOutside: true,
	}.Describe(tasksCreatePage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a tasksCreateArgs) (tool.Result, error) {
		t := gtask{Title: a.Title, Notes: strings.TrimSpace(a.Notes + "\n\n" + marker(c.Key))}
		if a.Due != "" {
			day, err := time.Parse(time.DateOnly, a.Due)
			if err != nil {
				return tool.Result{}, fault.New(fault.Invalid, "arguments.due: must be a day such as 2026-03-01; tasks have no time of day")
			}
			t.Due = day.Format(time.RFC3339)
		}
		path, err := tasksPath(a.ListID, "")
		if err != nil {
			return tool.Result{}, err
		}
		var created gtask
		reply, err := d.taskCall(ctx, egress.Request{Method: http.MethodPost, Path: path, Query: url.Values{"fields": {taskFields}}, Body: t}, &created)
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(created.view(reply)), nil
	}, func(a tasksCreateArgs) string { return a.Title }).When(d.googleReady).Verified(d.findTask), err
}

func (d Deps) findTask(ctx context.Context, c tool.Call, a tasksCreateArgs) (tool.Result, bool, error) {
	path, err := tasksPath(a.ListID, "")
	if err != nil {
		return tool.Result{}, false, err
	}
	q := url.Values{
		"maxResults": {lookupPages}, "fields": {"nextPageToken,items(" + taskFields + ",notes)"},
		"showCompleted": {"true"}, "showHidden": {"true"}, "showDeleted": {"true"}, "updatedMin": {d.Now().Add(-lookBack).UTC().Format(time.RFC3339)},
	}
	for range maxLookups {
		var page struct {
			Items         []gtask `json:"items"`
			NextPageToken string  `json:"nextPageToken"`
		}
		reply, err := d.taskCall(ctx, egress.Request{Path: path, Query: q}, &page)
		if err != nil {
			return tool.Result{}, false, err
		}
		for i := range page.Items {
			if strings.Contains(page.Items[i].Notes, marker(c.Key)) {
				return tool.Object(page.Items[i].view(reply)), true, nil
			}
		}
		if page.NextPageToken == "" {
			return tool.Result{}, false, nil
		}
		q.Set("pageToken", page.NextPageToken)
	}
	return tool.Result{}, false, fault.New(fault.Conflict, "too many tasks have changed to look for the one that was created")
}
