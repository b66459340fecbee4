package tools

import (
	"context"
	_ "embed"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed browser_type.md
var browserTypePage string

type browserTypeArgs struct {
	Selector string `json:"selector"`
	Text     string `json:"text"`
	Submit   bool   `json:"submit"`
}

// browserType is unsafe: a page may send each key at once.
func browserType(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "browser_type", Effect: toolv1.Effect_EFFECT_UNSAFE, ReadsUntrusted: true, ActsOutside: true,
	}.Describe(browserTypePage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a browserTypeArgs) (tool.Result, error) {
		res, err := d.Browser.Type(ctx, &browserv1.TypeRequest{Selector: a.Selector, Text: a.Text, Submit: a.Submit})
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(acted{"Typed into: " + res.GetElement(), webPageOf(res.GetPage())}), nil
	}, func(a browserTypeArgs) string { return a.Selector }).When(d.browserReady), err
}
