package tools

import (
	"context"
	_ "embed"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_create.md
var docCreatePage string

type docCreateArgs struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

type docCreated struct {
	ID       string       `json:"id"`
	Name     string       `json:"name"`
	Warnings []docWarning `json:"warnings,omitempty"`
}

func docCreate(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_create", Effect: toolv1.Effect_EFFECT_SAME_TX}.Describe(docCreatePage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a docCreateArgs) (tool.Result, error) {
		res, err := d.Documents.Create(ctx, &documentv1.CreateRequest{Name: a.Name, Markdown: a.Content, OperationKey: c.Key.String()})
		if err != nil {
			return tool.Result{}, docError(err)
		}
		return tool.Object(docCreated{res.GetDocument().GetId(), res.GetDocument().GetName(), docWarnings(res.GetWarnings())}), nil
	}, func(a docCreateArgs) string { return a.Name }), err
}
