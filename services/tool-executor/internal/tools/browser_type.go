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
	Origin   string `json:"origin"`
	Selector string `json:"selector"`
	Text     string `json:"text"`
	Submit   bool   `json:"submit"`
}

// browserType is unsafe: a page may send each key at once.
func browserType(d Deps) (tool.Tool, error) {
	spec, err := d.describeBrowser(tool.Spec{Name: "browser_type", Effect: toolv1.Effect_EFFECT_UNSAFE, ActsOutside: true}, browserTypePage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a browserTypeArgs) (tool.Result, error) {
		res, err := d.Browser.Type(ctx, &browserv1.TypeRequest{Origin: a.Origin, Selector: a.Selector, Text: a.Text, Submit: a.Submit})
		if err != nil {
			return tool.Result{}, err
		}
		return didTo("Typed into", res.GetElement(), res.GetProblem(), res.GetPage()), nil
	}, func(a browserTypeArgs) string { return a.Origin + " " + a.Selector }).When(d.browserReady), err
}
