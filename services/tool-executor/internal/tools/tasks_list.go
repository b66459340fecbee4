package tools

import (
	"context"
	_ "embed"
	"net/url"
	"strconv"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed tasks_list.md
var tasksListPage string

type tasksListArgs struct {
	ListID           string `json:"list_id"`
	MaxResults       int    `json:"max_results"`
	IncludeNotes     bool   `json:"include_notes"`
	IncludeCompleted bool   `json:"include_completed"`
	PageToken        string `json:"page_token"`
}

type tasksListed struct {
	Tasks         []taskView `json:"tasks"`
	NextPageToken string     `json:"next_page_token,omitempty"`
	Simulated     bool       `json:"simulated,omitempty"`
}

func tasksList(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "tasks_list", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true,
		Less: "use a smaller max_results, or leave out the notes",
	}.Describe(tasksListPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a tasksListArgs) (tool.Result, error) {
		path, err := tasksPath(a.ListID, "")
		if err != nil {
			return tool.Result{}, err
		}
		completed, fields := strconv.FormatBool(a.IncludeCompleted), "id,title,status,due"
		if a.IncludeNotes {
			fields += ",notes"
		}
		q := url.Values{
			"maxResults": {strconv.Itoa(limit(a.MaxResults, defaultListed, d.MaxTasks))}, "fields": {"nextPageToken,items(" + fields + ")"},
			"showCompleted": {completed}, "showHidden": {completed}, // Google hides tasks that were completed in its own apps
		}
		if a.PageToken != "" {
			q.Set("pageToken", a.PageToken)
		}
		var page struct {
			Items         []gtask `json:"items"`
			NextPageToken string  `json:"nextPageToken"`
		}
		reply, err := d.taskCall(ctx, egress.Request{Path: path, Query: q}, &page)
		if err != nil {
			return tool.Result{}, err
		}
		out := tasksListed{Tasks: []taskView{}, NextPageToken: page.NextPageToken, Simulated: reply.Simulated}
		for i := range page.Items {
			t := page.Items[i].view(egress.Reply{})
			if a.IncludeNotes {
				t.Notes = shorten(withoutMarker(page.Items[i].Notes), maxNotes)
			}
			out.Tasks = append(out.Tasks, t)
		}
		return tool.Object(out), nil
	}, nil).When(d.googleReady), err
}
