package tools

import (
	"context"
	_ "embed"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_append.md
var docAppendPage string

type docAppendArgs struct {
	ID      string `json:"id"`
	Content string `json:"content"`
}

type docAppended struct {
	ID       string       `json:"id"`
	Warnings []docWarning `json:"warnings,omitempty"`
}

func docAppend(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_append", Effect: toolv1.Effect_EFFECT_SAME_TX}.Describe(docAppendPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a docAppendArgs) (tool.Result, error) {
		res, err := d.Documents.Append(ctx, &documentv1.AppendRequest{Id: a.ID, Markdown: a.Content, OperationKey: c.Key.String()})
		if err != nil {
			return tool.Result{}, docError(err)
		}
		return tool.Object(docAppended{a.ID, docWarnings(res.GetWarnings())}), nil
	}, func(a docAppendArgs) string { return a.ID }), err
}
