package tools

import (
	"context"
	_ "embed"
	"net/http"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed notion_search.md
var notionSearchPage string

type notionSearchArgs struct {
	Query      string `json:"query"`
	MaxResults int    `json:"max_results"`
	PageToken  string `json:"page_token"`
}

type notionFound struct {
	ID         string `json:"id"`
	Title      string `json:"title"`
	URL        string `json:"url"`
	LastEdited string `json:"last_edited"`
}

type notionSearched struct {
	Pages         []notionFound `json:"pages"`
	NextPageToken string        `json:"next_page_token,omitempty"`
	Simulated     bool          `json:"simulated,omitempty"`
}

// mostFound bounds the pages of a search: Notion answers with all properties of each.
const mostFound = 25

func notionSearch(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "notion_search", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true, Less: "use a smaller max_results",
	}.Describe(notionSearchPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a notionSearchArgs) (tool.Result, error) {
		body := map[string]any{
			"query": a.Query, "page_size": limit(a.MaxResults, 10, mostFound),
			"filter": map[string]string{"property": "object", "value": "page"},
			"sort":   map[string]string{"timestamp": "last_edited_time", "direction": "descending"},
		}
		if a.PageToken != "" {
			body["start_cursor"] = a.PageToken
		}
		var page notionList[notionPage]
		reply, err := d.notionCall(ctx, egress.Request{Method: http.MethodPost, Path: "/v1/search", Body: body}, &page)
		if err != nil {
			return tool.Result{}, err
		}
		out := notionSearched{Pages: []notionFound{}, NextPageToken: page.NextCursor, Simulated: reply.Simulated}
		for i := range page.Results {
			p := &page.Results[i]
			out.Pages = append(out.Pages, notionFound{p.ID, p.title(), p.URL, p.LastEdited})
		}
		return tool.Object(out), nil
	}, func(a notionSearchArgs) string { return a.Query }).When(d.notionReady), err
}
