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
	if err := checkSelector(req.GetSelector()); err != nil {
		return nil, err
	}
	var at struct {
		Problem string  `json:"problem"`
		Element string  `json:"element"`
		Clicked bool    `json:"clicked"`
		X       float64 `json:"x"`
		Y       float64 `json:"y"`
	}
	page, err := s.do(ctx, false, func(g *page) error {
		g.forget()
		if err := g.call(ctx, "click", map[string]string{"selector": req.GetSelector()}, &at); err != nil {
			return err
		}
		if at.Problem != "" {
			return fault.New(fault.NotFound, "selector: %s", at.Problem)
		}
		if !at.Clicked {
			if err := g.mouse(ctx, at.X, at.Y); err != nil {
				return uncertain(err)
			}
		}
		return uncertain(g.settled(ctx))
	})
	return &browserv1.ClickResponse{Page: page, Element: at.Element}, err
}

// Type implements BrowserService.
func (s *Service) Type(ctx context.Context, req *browserv1.TypeRequest) (*browserv1.TypeResponse, error) {
	if err := checkSelector(req.GetSelector()); err != nil {
		return nil, err
	}
	if len(req.GetText()) > maxTyped {
		return nil, fault.New(fault.TooLarge, "text: has %d bytes; at most %d are typed at once", len(req.GetText()), maxTyped)
	}
	var at struct {
		Problem string `json:"problem"`
		Element string `json:"element"`
		Done    bool   `json:"done"`
	}
	page, err := s.do(ctx, false, func(g *page) error {
		g.forget()
		if err := g.call(ctx, "field", map[string]string{"selector": req.GetSelector(), "text": req.GetText()}, &at); err != nil {
			return err
		}
		if at.Problem != "" {
			return fault.New(fault.NotFound, "selector: %s", at.Problem)
		}
		err := g.step(ctx, stepTime, func(ctx context.Context) error {
			if !at.Done {
				if _, err := cdp.Call(ctx, g.target, input.InsertText, input.InsertTextParams{Text: req.GetText()}); err != nil {
					return err
				}
			}
			if req.GetSubmit() {
				return enter(ctx, g)
			}
			return nil
		})
		if err != nil {
			return uncertain(err)
		}
		return uncertain(g.settled(ctx))
	})
	return &browserv1.TypeResponse{Page: page, Element: at.Element}, err
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

func checkSelector(selector string) error {
	if strings.TrimSpace(selector) == "" || len(selector) > maxSelector {
		return fault.New(fault.Invalid, "selector: a reference like @12 or a CSS selector of at most %d bytes is needed", maxSelector)
	}
	return nil
}

// uncertain marks an error after which it is not known whether the page got the input.
func uncertain(err error) error {
	if err == nil || fault.From(err).Kind == fault.Unavailable || !errors.Is(err, errHangs) {
		return err
	}
	return fault.Wrap(err, fault.Unavailable, "the page does not respond and was closed")
}

// mouse clicks at a point of the window.
func (g *page) mouse(ctx context.Context, x, y float64) error {
	return g.step(ctx, stepTime, func(ctx context.Context) error {
		for _, kind := range []input.DispatchMouseEventType{input.DispatchMouseEventTypeMouseMoved, input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased} {
			p := input.DispatchMouseEventParams{Type: kind, X: x, Y: y}
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
