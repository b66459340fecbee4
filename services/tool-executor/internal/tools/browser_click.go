package tools

import (
	"context"
	_ "embed"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed browser_click.md
var browserClickPage string

type browserClickArgs struct {
	Origin   string `json:"origin"`
	Selector string `json:"selector"`
}

// browserClick is unsafe: nobody can tell what a click has caused.
func browserClick(d Deps) (tool.Tool, error) {
	spec, err := d.describeBrowser(tool.Spec{Name: "browser_click", Effect: toolv1.Effect_EFFECT_UNSAFE, ActsOutside: true}, browserClickPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a browserClickArgs) (tool.Result, error) {
		res, err := d.Browser.Click(ctx, &browserv1.ClickRequest{Origin: a.Origin, Selector: a.Selector})
		if err != nil {
			return tool.Result{}, err
		}
		return didTo("Clicked", res.GetElement(), res.GetProblem(), res.GetPage()), nil
	}, func(a browserClickArgs) string { return a.Origin + " " + a.Selector }).When(d.browserReady), err
}
