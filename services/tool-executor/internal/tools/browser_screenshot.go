package tools

import (
	"context"
	_ "embed"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed browser_screenshot.md
var browserScreenshotPage string

// picture is the result of browser_screenshot.
type picture struct {
	acted

	Image tool.File `json:"image"`
}

func browserScreenshot(d Deps) (tool.Tool, error) {
	spec, err := d.describeBrowser(tool.Spec{Name: "browser_screenshot", Effect: toolv1.Effect_EFFECT_PURE, ReturnsImage: true}, browserScreenshotPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, _ struct{}) (tool.Result, error) {
		res, err := d.Browser.Screenshot(ctx, &browserv1.ScreenshotRequest{})
		if err != nil {
			return tool.Result{}, err
		}
		page := webPageOf(res.GetPage())
		return tool.Object(picture{
			acted: acted{"This is what the page looks like now.", &page}, Image: tool.Image(res.GetMediaType(), res.GetImage()),
		}), nil
	}, nil).When(d.browserReady), err
}
