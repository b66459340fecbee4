package browser

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	cdppage "github.com/chromedp/cdproto/page"

	"signalbox.dev/pkg/fault"
	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
)

// Bounds of requests and answers.
const (
	maxSelector = 1000
	maxOrigin   = 300
	maxTyped    = 80_000
	maxImage    = 180 << 10
)

// Open implements BrowserService.
func (s *Service) Open(ctx context.Context, req *browserv1.OpenRequest) (*browserv1.OpenResponse, error) {
	u, err := url.Parse(strings.TrimSpace(req.GetUrl()))
	if err != nil {
		return nil, fault.New(fault.Invalid, "url: is not a URL")
	}
	if err := s.guard.CheckURL(u); err != nil {
		return nil, fault.New(fault.Invalid, "url: %v", err)
	}
	if s.private && !req.GetPrivate() {
		return nil, fault.New(fault.Conflict, "the operator has to set BROWSER_ALLOW_PRIVATE for tool-executor too, so that agents keep private pages to themselves")
	}
	page, err := s.do(ctx, true, func(g *page) error {
		// The page is left first, because one that reloads itself could get ahead of the next one.
		if err := g.navigate(ctx, blank); err != nil {
			return err
		}
		err := g.navigate(ctx, u.String())
		if err != nil && ctx.Err() == nil {
			_ = g.navigate(ctx, blank) // instead of Chromium's own error page
		}
		return err
	})
	return &browserv1.OpenResponse{Page: page}, err
}

// Read implements BrowserService.
func (s *Service) Read(ctx context.Context, _ *browserv1.ReadRequest) (*browserv1.ReadResponse, error) {
	var text struct {
		Markdown  string `json:"markdown"`
		Truncated bool   `json:"truncated"`
	}
	page, err := s.do(ctx, false, func(g *page) error { return g.call(ctx, "markdown", nil, &text) })
	return &browserv1.ReadResponse{Page: page, Markdown: text.Markdown, Truncated: text.Truncated}, err
}

// Click implements BrowserService.
func (s *Service) Click(ctx context.Context, req *browserv1.ClickRequest) (*browserv1.ClickResponse, error) {
	in := to{Selector: req.GetSelector(), Origin: req.GetOrigin()}
	did, err := s.act(ctx, "target", in, func(g *page, at element) (err error) {
		same := to{Selector: at.Ref, Origin: in.Origin}
		if at.Mouse {
			// Under the mouse, the page may change or leave.
			if err := g.mouse(ctx, at, input.DispatchMouseEventTypeMouseMoved); err != nil {
				return err
			}
			if at, err = g.use(ctx, "target", same); err != nil {
				return err
			}
		}
		if at.Mouse {
			return g.mouse(ctx, at, input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased)
		}
		_, err = g.use(ctx, "click", same)
		return err
	})
	return &browserv1.ClickResponse{Page: did.page, Element: did.element, Problem: did.problem}, err
}

// Type implements BrowserService.
func (s *Service) Type(ctx context.Context, req *browserv1.TypeRequest) (*browserv1.TypeResponse, error) {
	if len(req.GetText()) > maxTyped {
		return nil, fault.New(fault.TooLarge, "text: has %d bytes; at most %d are typed at once", len(req.GetText()), maxTyped)
	}
	in := to{req.GetSelector(), req.GetOrigin(), req.GetText()}
	did, err := s.act(ctx, "field", in, func(g *page, at element) error {
		filled, err := g.use(ctx, "fill", to{at.Ref, in.Origin, in.Text})
		if err != nil {
			return err
		}
		if !filled.Done {
			err := g.step(ctx, stepTime, func(ctx context.Context) error {
				_, err := cdp.Call(ctx, g.target, input.InsertText, input.InsertTextParams{Text: in.Text})
				return err
			})
			if err != nil {
				return err
			}
		}
		if !req.GetSubmit() {
			return nil
		}
		if _, err := g.use(ctx, "here", in); err != nil {
			return fault.Wrap(err, fault.Unavailable, "the page was left while the text was typed, and Enter was not pressed")
		}
		return g.step(ctx, stepTime, func(ctx context.Context) error { return enter(ctx, g) })
	})
	return &browserv1.TypeResponse{Page: did.page, Element: did.element, Problem: did.problem}, err
}

// Screenshot implements BrowserService.
func (s *Service) Screenshot(ctx context.Context, _ *browserv1.ScreenshotRequest) (*browserv1.ScreenshotResponse, error) {
	var image []byte
	page, err := s.do(ctx, false, func(g *page) error {
		for _, quality := range []int64{80, 60, 40, 20, 5} {
			err := g.step(ctx, stepTime, func(ctx context.Context) error {
				res, err := cdp.Call(ctx, g.target, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
					Format: cdppage.CaptureScreenshotFormatJpeg, Quality: &quality,
				})
				image = res.Data
				return err
			})
			if err != nil || len(image) <= maxImage {
				return err
			}
		}
		return fault.New(fault.TooLarge, "the picture of this page is too large: read it with browser_read")
	})
	return &browserv1.ScreenshotResponse{Page: page, Image: image, MediaType: "image/jpeg"}, err
}

// do runs f with the session's page and returns where the page is afterwards.
func (s *Service) do(ctx context.Context, create bool, f func(*page) error) (*browserv1.Page, error) {
	g, release, err := s.acquire(ctx, create)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := f(g); err != nil {
		return nil, s.outcome(ctx, g, err)
	}
	where, err := g.where(ctx)
	return where, s.outcome(ctx, g, err)
}

// where describes the page. It leaves one that is not from the web.
func (g *page) where(ctx context.Context) (*browserv1.Page, error) {
	frame, err := g.frame(ctx)
	if err != nil {
		return nil, err
	}
	if frame.UnreachableURL != "" {
		return nil, g.notLoaded(ctx, "the server cannot be reached")
	}
	if u, err := url.Parse(strings.TrimPrefix(frame.URL, "blob:")); err != nil || u.Scheme != "http" && u.Scheme != "https" && frame.URL != blank {
		return nil, errors.Join(fault.New(fault.Forbidden, "only http and https pages can be shown"), g.navigate(ctx, blank))
	}
	var info struct {
		Title  string `json:"title"`
		Status int32  `json:"status"`
	}
	if err := g.call(ctx, "info", nil, &info); err != nil {
		return nil, err
	}
	g.mu.Lock()
	loading := g.loading
	g.mu.Unlock()
	return &browserv1.Page{Url: clip(frame.URL, 2000), Title: info.Title, Status: info.Status, Loading: loading}, nil
}

const blank = "about:blank"

// to says what an input is for: arguments of functions in page.js.
type to struct {
	Selector string `json:"selector"`
	Origin   string `json:"origin"`
	Text     string `json:"text"`
}

func (t to) check() error {
	if strings.TrimSpace(t.Selector) == "" || len(t.Selector) > maxSelector {
		return fault.New(fault.Invalid, "selector: a reference like @12 or a CSS selector of at most %d bytes is needed", maxSelector)
	}
	if t.Origin == "" || len(t.Origin) > maxOrigin {
		return fault.New(fault.Invalid, "origin: that of the page is needed, such as https://example.com")
	}
	return nil
}

// element is what functions of page.js have found or done.
type element struct {
	Problem   string  `json:"problem"`
	Elsewhere string  `json:"elsewhere"` // the page's origin, if it is not the wanted one
	Element   string  `json:"element"`
	Ref       string  `json:"ref"`
	Mouse     bool    `json:"mouse"` // the mouse reaches it at x and y
	X         float64 `json:"x"`
	Y         float64 `json:"y"`
	Done      bool    `json:"done"`
}

// use runs a function of page.js with an element. Faults other than Unavailable mean that it has
// done nothing.
func (g *page) use(ctx context.Context, function string, in to) (at element, err error) {
	if err := g.call(ctx, function, in, &at); err != nil {
		return at, err
	}
	switch {
	case at.Elsewhere != "":
		return at, fault.Coded(fault.Conflict, "OTHER_ORIGIN", "origin: the page is at %s now, not at %s: see what is there, and name this origin if you still mean it",
			clip(at.Elsewhere, maxOrigin), in.Origin)
	case at.Problem != "":
		return at, fault.New(fault.NotFound, "selector: %s", at.Problem)
	}
	return at, nil
}

// deed is what has become of an input that the page has got.
type deed struct {
	page    *browserv1.Page // nil if it is not known
	element string
	problem string // that followed
}

// act finds an element with a function of page.js, and lets f act on it. After f it returns no
// error any more, because the input cannot be undone. If it is not known whether the page has
// got the input, the error is Unavailable.
func (s *Service) act(ctx context.Context, find string, in to, f func(*page, element) error) (deed, error) {
	if err := in.check(); err != nil {
		return deed{}, err
	}
	g, release, err := s.acquire(ctx, false)
	if err != nil {
		return deed{}, err
	}
	defer release()
	at, err := g.use(ctx, find, in)
	if err == nil {
		g.forget()
		err = unsure(f(g, at))
	}
	if err != nil {
		return deed{}, s.outcome(ctx, g, err)
	}
	did := deed{element: at.Element}
	if err = g.settled(ctx); err == nil {
		did.page, err = g.where(ctx)
	}
	if err = s.outcome(ctx, g, err); err != nil {
		did.problem = following(ctx, err)
	}
	return did, nil
}

// unsure returns the error of an input that the page may have got.
func unsure(err error) error {
	switch {
	case errors.Is(err, errHangs):
		return fault.Wrap(err, fault.Unavailable, "the page does not respond and was closed")
	case err != nil && fault.From(err).Kind == fault.Internal:
		return fault.Wrap(err, fault.Unavailable, "the page was left or closed meanwhile")
	}
	return err
}

// following says what went wrong after an input.
func following(ctx context.Context, err error) string {
	f := fault.From(err)
	switch {
	case ctx.Err() != nil:
		return "there was no time to see what followed"
	case f.Kind == fault.Internal:
		return "it is not known what followed"
	}
	return f.Message
}

// mouse does things with the mouse at an element.
func (g *page) mouse(ctx context.Context, at element, kinds ...input.DispatchMouseEventType) error {
	return g.step(ctx, stepTime, func(ctx context.Context) error {
		for _, kind := range kinds {
			p := input.DispatchMouseEventParams{Type: kind, X: at.X, Y: at.Y}
			if kind != input.DispatchMouseEventTypeMouseMoved {
				p.Button, p.ClickCount = input.MouseButtonLeft, 1
			}
			if _, err := cdp.Call(ctx, g.target, input.DispatchMouseEvent, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// enter presses the Enter key.
func enter(ctx context.Context, g *page) error {
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		p := input.DispatchKeyEventParams{Type: kind, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13, NativeVirtualKeyCode: 13}
		if kind == input.DispatchKeyEventTypeKeyDown {
			p.Text = "\r"
		}
		if _, err := cdp.Call(ctx, g.target, input.DispatchKeyEvent, p); err != nil {
			return err
		}
	}
	return nil
}
