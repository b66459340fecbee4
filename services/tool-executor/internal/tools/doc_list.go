package tools

import (
	"context"
	_ "embed"
	"time"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_list.md
var docListPage string

type docListArgs struct {
	Limit     int32  `json:"limit"`
	PageToken string `json:"page_token"`
}

type docListed struct {
	Documents     []docEntry `json:"documents"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

type docEntry struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	UpdatedAt string `json:"updated_at"`
}

func docList(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_list", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true, Less: "use a smaller limit"}.Describe(docListPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a docListArgs) (tool.Result, error) {
		res, err := d.Documents.List(ctx, &documentv1.ListRequest{PageSize: a.Limit, PageToken: a.PageToken})
		if err != nil {
			return tool.Result{}, docError(err)
		}
		out := docListed{Documents: []docEntry{}, NextPageToken: res.GetNextPageToken()}
		for _, doc := range res.GetDocuments() {
			out.Documents = append(out.Documents, docEntry{doc.GetId(), doc.GetName(), doc.GetUpdatedAt().AsTime().Format(time.RFC3339)})
		}
		return tool.Object(out), nil
	}, nil), err
}
