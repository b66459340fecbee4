package tools

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"strings"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed notion_append.md
var notionAppendPage string

type notionAppendArgs struct {
	ID      string `json:"id"`
	Content string `json:"content"`
}

type notionAppended struct {
	ID        string `json:"id"`
	Blocks    int    `json:"blocks"`
	Simulated bool   `json:"simulated,omitempty"`
}

const maxNotionLookups = 30 // pages of 100 blocks

// notionAppend leaves a marker in small grey text behind the last block, since Notion takes no
// key: a repeated call looks for it among the page's blocks.
func notionAppend(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "notion_append", Effect: toolv1.Effect_EFFECT_VERIFY, NeedsApproval: true, ActsOutside: true}.Describe(notionAppendPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a notionAppendArgs) (tool.Result, error) {
		page, err := notionID(a.ID)
		if err != nil {
			return tool.Result{}, err
		}
		blocks, err := notionBlocks(a.Content, marker(c.Key))
		if err != nil {
			return tool.Result{}, err
		}
		reply, err := d.notionCall(ctx, egress.Request{
			Method: http.MethodPatch, Path: "/v1/blocks/" + page + "/children", Body: map[string]any{"children": blocks},
		}, nil)
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(notionAppended{page, len(blocks), reply.Simulated}), nil
	}, func(a notionAppendArgs) string { return a.ID }).When(d.notionReady).Verified(func(ctx context.Context, c tool.Call, a notionAppendArgs) (tool.Result, bool, error) {
		page, err := notionID(a.ID)
		if err != nil {
			return tool.Result{}, false, err
		}
		return d.findAppended(ctx, page, a.Content, marker(c.Key))
	}), err
}

// findAppended looks for the block with a marker.
func (d Deps) findAppended(ctx context.Context, page, content, mark string) (tool.Result, bool, error) {
	q := url.Values{"page_size": {"100"}}
	for range maxNotionLookups {
		var list notionList[notionBlock]
		reply, err := d.notionCall(ctx, egress.Request{Path: "/v1/blocks/" + page + "/children", Query: q}, &list)
		if fault.KindOf(err) == fault.NotFound {
			return tool.Result{}, false, nil // running the call says so
		}
		if err != nil {
			return tool.Result{}, false, err
		}
		for i := range list.Results {
			if strings.HasSuffix(plainText(list.Results[i].Content.RichText), mark) {
				blocks, err := notionBlocks(content, mark)
				return tool.Object(notionAppended{page, len(blocks), reply.Simulated}), true, err
			}
		}
		if list.NextCursor == "" {
			return tool.Result{}, false, nil
		}
		q.Set("start_cursor", list.NextCursor)
	}
	return tool.Result{}, false, fault.New(fault.Conflict, "the page is too long to look for what was appended")
}
