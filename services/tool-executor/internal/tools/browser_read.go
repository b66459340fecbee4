package tools

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed browser_read.md
var browserReadPage string

type browserReadArgs struct {
	PageToken string `json:"page_token"`
}

type browserText struct {
	webPage
	Content       string `json:"content"`
	NextPageToken string `json:"next_page_token,omitempty"`
	Changed       bool   `json:"changed,omitempty"`
	Truncated     bool   `json:"truncated,omitempty"` // the page goes on, but not here
}

// browserReadRoom is the space in a result for everything but the content; browserReadMost
// keeps the parts of a page short enough for a model to read many.
const (
	browserReadRoom = 8 << 10
	browserReadMost = 24 << 10
)

func browserRead(d Deps) (tool.Tool, error) {
	spec, err := d.describeBrowser(tool.Spec{Name: "browser_read", Effect: toolv1.Effect_EFFECT_PURE}, browserReadPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a browserReadArgs) (tool.Result, error) {
		var offset int
		var digest uint32
		if a.PageToken != "" {
			if n, err := fmt.Sscanf(a.PageToken, "%d.%x", &offset, &digest); n != 2 || err != nil || offset < 0 {
				return tool.Errorf("invalid_arguments", "arguments.page_token: unknown; pass the next_page_token of the part before, or leave it out"), nil
			}
		}
		res, err := d.Browser.Read(ctx, &browserv1.ReadRequest{})
		if err != nil {
			return tool.Result{}, err
		}
		content := res.GetMarkdown()
		h := fnv.New32a()
		_, _ = h.Write([]byte(content)) // never fails
		offset = runeStart(content, offset)
		end := pageEnd(content, offset, min(c.OutputCap-browserReadRoom, browserReadMost))
		out := browserText{
			webPage: webPageOf(res.GetPage()), Content: content[offset:end],
			Changed: a.PageToken != "" && digest != h.Sum32(), Truncated: end == len(content) && res.GetTruncated(),
		}
		if end < len(content) {
			out.NextPageToken = fmt.Sprintf("%d.%x", end, h.Sum32())
		}
		return tool.Object(out), nil
	}, nil).When(d.browserReady), err
}
