package tools

import (
	"context"

	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// browserReady says whether there is a browser.
func (d Deps) browserReady(context.Context) tool.Availability {
	why := ""
	switch {
	case d.Browser == nil:
		why = "no browser is configured: the operator sets TOOL_EXECUTOR_BROWSER"
	case d.BrowserUnavailable != nil:
		why = d.BrowserUnavailable()
	}
	return tool.Availability{Available: why == "", Reason: why}
}

// describeBrowser completes the spec of a tool of the browser.
func (d Deps) describeBrowser(s tool.Spec, page string) (tool.Spec, error) {
	s.ReadsUntrusted, s.ReadsPrivate = true, d.BrowserPrivate
	return s.Describe(page)
}

// webPage is a page of the browser in results.
type webPage struct {
	URL     string `json:"url"`
	Title   string `json:"title"`
	Status  int32  `json:"status,omitempty"`
	Loading bool   `json:"loading,omitempty"` // not complete yet
}

func webPageOf(p *browserv1.Page) webPage {
	return webPage{p.GetUrl(), p.GetTitle(), p.GetStatus(), p.GetLoading()}
}

// acted is the result of a tool that acts on a page, which is nil if it is not known any more.
type acted struct {
	Result string `json:"result"`
	*webPage
}

// didTo returns the result of an input that an element has got.
func didTo(did, element, problem string, p *browserv1.Page) tool.Result {
	a := acted{Result: did + ": " + element}
	if problem != "" {
		a.Result += ". It is done, but then there was a problem: " + problem
	}
	if p != nil {
		page := webPageOf(p)
		a.webPage = &page
	}
	return tool.Object(a)
}
