package tools

import (
	"context"
	_ "embed"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_delete.md
var docDeletePage string

func docDelete(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_delete", Effect: toolv1.Effect_EFFECT_SAME_TX, NeedsApproval: true}.Describe(docDeletePage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a docID) (tool.Result, error) {
		if _, err := d.Documents.Delete(ctx, &documentv1.DeleteRequest{Id: a.ID, OperationKey: c.Key.String()}); err != nil {
			return tool.Result{}, docError(err)
		}
		return tool.Object(map[string]bool{"success": true}), nil
	}, func(a docID) string { return a.ID }), err
}
