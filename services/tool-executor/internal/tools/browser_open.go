package tools

import (
	"context"
	_ "embed"
	"net/url"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed browser_open.md
var browserOpenPage string

type browserOpenArgs struct {
	URL string `json:"url"`
}

// browserOpen acts outside: the address may tell the server what the model has read. A repeated
// call loads the page again, as a person's reload does.
func browserOpen(d Deps) (tool.Tool, error) {
	spec, err := d.describeBrowser(tool.Spec{Name: "browser_open", Effect: toolv1.Effect_EFFECT_PURE, ActsOutside: true}, browserOpenPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a browserOpenArgs) (tool.Result, error) {
		res, err := d.Browser.Open(ctx, &browserv1.OpenRequest{Url: a.URL, Private: d.BrowserPrivate})
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Object(webPageOf(res.GetPage())), nil
	}, func(a browserOpenArgs) string { return withoutQuery(a.URL) }).When(d.browserReady), err
}

// withoutQuery returns the part of an address that is unlikely to have a secret.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}
