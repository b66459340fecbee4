package tools

import (
	"context"
	_ "embed"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_edit.md
var docEditPage string

type docEditArgs struct {
	ID         string `json:"id"`
	OldText    string `json:"old_text"`
	NewText    string `json:"new_text"`
	ReplaceAll bool   `json:"replace_all"`
}

type docEdited struct {
	ID           string       `json:"id"`
	Replacements int32        `json:"replacements"`
	Warnings     []docWarning `json:"warnings,omitempty"`
}

func docEdit(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_edit", Effect: toolv1.Effect_EFFECT_SAME_TX}.Describe(docEditPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a docEditArgs) (tool.Result, error) {
		res, err := d.Documents.Edit(ctx, &documentv1.EditRequest{
			Id: a.ID, OldText: a.OldText, NewText: a.NewText, ReplaceAll: a.ReplaceAll, OperationKey: c.Key.String(),
		})
		if err != nil {
			return tool.Result{}, docError(err)
		}
		return tool.Object(docEdited{a.ID, res.GetReplacements(), docWarnings(res.GetWarnings())}), nil
	}, func(a docEditArgs) string { return a.ID }), err
}
