package browser

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/inspector"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
)

// The size of the window.
const (
	width  = 1280
	height = 800
)

// Limits of the steps of a call. Together they are below the deadline of a tool.
const (
	openTime     = 10 * time.Second // an empty page
	navigateTime = 15 * time.Second // until the server answers
	loadTime     = 8 * time.Second  // then, until the page is complete; it can be read before
	stepTime     = 8 * time.Second  // until the page does something that does not depend on a server
	settleTime   = 300 * time.Millisecond
	abortTime    = 100 * time.Millisecond
)

// errHangs means that the page or the browser did not do a step in time.
var errHangs = errors.New("the page does not respond")

// page is the page of a session.
type page struct {
	process *process
	turn    chan struct{}   // held by a call
	ctx     context.Context // chromedp's; it ends with the page
	cancel  context.CancelFunc
	own     *chromedp.Context
	target  *chromedp.Target

	// Service.mu guards these.
	users int // calls
	used  time.Time
	began time.Time // the call that has the turn

	mu        sync.Mutex // guards the fields below
	changed   chan struct{}
	loading   bool   // the main frame
	requested bool   // the page has asked for another one, which has not begun to load
	popUp     string // address of a window that the page has opened
	ended     bool   // crashed, or given up
}

// open opens an empty page in a browser context of its own.
func (p *process) open(ctx context.Context) (*page, error) {
	g := &page{process: p, turn: make(chan struct{}, 1), changed: make(chan struct{})}
	g.ctx, g.cancel = chromedp.NewContext(p.ctx, chromedp.WithNewBrowserContext()) //nolint:contextcheck // the page outlives the call
	g.own = chromedp.FromContext(g.ctx)                                            //nolint:contextcheck // as above
	err := g.step(ctx, openTime, func(ctx context.Context) error {
		if err := chromedp.Do(g.ctx); err != nil { //nolint:contextcheck // the page lives as long as this context
			return err
		}
		return g.prepare(ctx)
	})
	if err != nil {
		go g.close(context.WithoutCancel(ctx))
		return nil, err
	}
	return g, nil
}

// prepare sets the page up.
func (g *page) prepare(ctx context.Context) error {
	c := g.own
	g.target = c.Target
	if err := chromedp.Listen(g.ctx, g.onEvent); err != nil { //nolint:contextcheck // as long as the page lives
		return err
	}
	// chromedp follows the page's tree and console, which a page can make it very busy with.
	for _, disable := range []cdp.Command[cdp.Empty, cdp.Empty]{dom.Disable, css.Disable, cdplog.Disable, network.Disable, runtime.Disable} {
		if _, err := cdp.Call(ctx, c.Target, disable, cdp.Empty{}); err != nil {
			return err
		}
	}
	_, err := cdp.Call(ctx, c.Target, target.SetAutoAttach, target.SetAutoAttachParams{})
	if err != nil {
		return err
	}
	_, err = cdp.Call(ctx, c.Browser, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorDeny, BrowserContextID: c.BrowserContextID,
	})
	if err != nil {
		return err
	}
	_, err = cdp.Call(ctx, c.Target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
	return err
}

// alive reports whether the page is open.
func (g *page) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctx.Err() == nil && !g.ended
}

// busy reports whether the page is open and being loaded.
func (g *page) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended && (g.loading || g.requested)
}

// giveUp makes the page count as closed, for the next call.
func (g *page) giveUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
}

// close closes the page and its browser context. It may take seconds.
func (g *page) close(ctx context.Context) {
	g.giveUp()
	c := g.own
	if c.Browser != nil && c.BrowserContextID != "" && g.process.alive() {
		// First the context, which does not wait for the page.
		ctx, cancel := context.WithTimeout(ctx, stopTime)
		defer cancel()
		_, _ = cdp.Call(ctx, c.Browser, target.DisposeBrowserContext, target.DisposeBrowserContextParams{BrowserContextID: c.BrowserContextID})
	}
	g.cancel()
}

// onEvent is called for each event of the page; it must not wait.
func (g *page) onEvent(ev any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	main := cdp.FrameID(g.target.TargetID)
	switch e := ev.(type) {
	case *cdppage.EventFrameRequestedNavigation:
		if e.FrameID != main || e.Disposition != cdppage.ClientNavigationDispositionCurrentTab {
			return
		}
		g.requested = true
	case *cdppage.EventFrameStartedLoading:
		if e.FrameID != main {
			return
		}
		g.loading, g.requested = true, false
	case *cdppage.EventFrameStoppedLoading:
		if e.FrameID != main {
			return
		}
		g.loading = false
	case *cdppage.EventWindowOpen:
		g.popUp = e.URL
	case *inspector.EventTargetCrashed:
		g.ended = true
	case *cdppage.EventJavascriptDialogOpening:
		go g.answerDialog(e.Type == cdppage.DialogTypeBeforeunload)
		return
	default:
		return
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// answerDialog dismisses a dialog of the page, which waits for it. The page may be left.
func (g *page) answerDialog(accept bool) {
	ctx, cancel := context.WithTimeout(g.ctx, stepTime)
	defer cancel()
	_, _ = cdp.Call(ctx, g.target, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{Accept: accept})
}

// step runs a part of a call. If f has not returned after limit, or when ctx ends, step returns
// without it: errHangs or the context's error. f's context ends then too.
func (g *page) step(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	inner, cancel := context.WithTimeoutCause(ctx, limit, errHangs)
	defer cancel()
	done := make(chan error, 1) // f may end later
	go func() { done <- panics.Try(func() error { return f(inner) }) }()
	var err error
	select {
	case err = <-done:
	case <-inner.Done():
	case <-g.ctx.Done():
	}
	switch {
	case inner.Err() != nil: // errHangs, or why ctx has ended
		return context.Cause(inner)
	case g.ctx.Err() != nil:
		return fault.New(fault.Unavailable, "the page was closed")
	}
	return err
}

// stopLoading ends the requests of a page whose call was given up. If the browser does not do
// that at once, the page is closed.
func (g *page) stopLoading(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	err := g.step(ctx, abortTime, func(ctx context.Context) error {
		_, err := cdp.Call(ctx, g.target, cdppage.StopLoading, cdp.Empty{})
		return err
	})
	if err != nil {
		g.giveUp()
		go g.close(ctx)
	}
}

// navigate loads an address, and returns when the page is loaded or can be read at least.
func (g *page) navigate(ctx context.Context, address string) error {
	var res cdppage.NavigateResult
	err := g.step(ctx, navigateTime, func(ctx context.Context) (err error) {
		res, err = cdp.Call(ctx, g.target, cdppage.Navigate, cdppage.NavigateParams{URL: address, TransitionType: cdppage.TransitionTypeTyped})
		return err
	})
	switch {
	case errors.Is(err, errHangs):
		g.stopLoading(ctx)
		return fault.Coded(fault.Conflict, "NOT_LOADED", "the server did not answer in %v: try again later, or go on without this page", navigateTime)
	case err != nil:
		return err
	case res.IsDownload:
		return fault.Coded(fault.Conflict, "DOWNLOAD", "the address is a file to download, which the browser does not do")
	case res.ErrorText != "":
		return g.notLoaded(ctx, res.ErrorText)
	}
	return g.loaded(ctx)
}

// notLoaded returns the error for a page that could not be loaded, with the proxy's reason if it
// has one.
func (g *page) notLoaded(ctx context.Context, code string) error {
	why := loadError(code)
	if at, err := g.frame(ctx); err == nil {
		if u, err := url.Parse(at.UnreachableURL); err == nil {
			why = cmp.Or(g.process.proxy.refusal(u), why)
		}
	}
	return fault.Coded(fault.Conflict, "NOT_LOADED", "the page could not be loaded: %s", why)
}

// frame returns what the browser says about the page's main frame.
func (g *page) frame(ctx context.Context) (*cdp.Frame, error) {
	var tree cdppage.GetFrameTreeResult
	err := g.step(ctx, stepTime, func(ctx context.Context) (err error) {
		tree, err = cdp.Call(ctx, g.target, cdppage.GetFrameTree, cdp.Empty{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return tree.FrameTree.Frame, nil
}

// loadError puts Chromium's code for an error into words.
func loadError(code string) string {
	for part, text := range map[string]string{
		"ERR_CERT_": "the server's certificate is not valid", "ERR_TOO_MANY_REDIRECTS": "the server redirects too often",
		"ERR_ABORTED": "the server sent no page", "ERR_UNKNOWN_URL_SCHEME": "only http and https addresses can be opened",
		"ERR_UNSAFE_PORT": "its port is not allowed", "ERR_TUNNEL_CONNECTION_FAILED": "the server cannot be reached", "ERR_EMPTY_RESPONSE": "the server cannot be reached",
	} {
		if strings.Contains(code, part) {
			return text
		}
	}
	return clip(code, 100)
}

// loaded waits until the page and those that it leads to are loaded, for loadTime at most.
func (g *page) loaded(ctx context.Context) error {
	limit := time.NewTimer(loadTime)
	defer limit.Stop()
	for {
		g.mu.Lock()
		changed, waiting, ended := g.changed, g.loading || g.requested, g.ended
		g.mu.Unlock()
		if ended {
			return errCrashed()
		}
		if !waiting {
			return nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return nil
		case <-g.ctx.Done():
			return fault.New(fault.Unavailable, "the page was closed")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func errCrashed() error {
	return fault.Coded(fault.Conflict, "CRASHED", "the page has crashed and was closed: open another with browser_open")
}

// settled waits for what a click or key has caused: the page that it leads to, also if the page
// opens it in a window of its own.
func (g *page) settled(ctx context.Context) error {
	quiet := time.NewTimer(settleTime)
	defer quiet.Stop()
	for waiting := true; waiting; {
		g.mu.Lock()
		changed, began := g.changed, g.loading || g.requested || g.popUp != "" || g.ended
		g.mu.Unlock()
		if began {
			break
		}
		select {
		case <-changed:
		case <-quiet.C:
			waiting = false
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	g.mu.Lock()
	popUp := g.popUp
	g.popUp = ""
	g.mu.Unlock()
	if strings.HasPrefix(popUp, "http:") || strings.HasPrefix(popUp, "https:") {
		return g.navigate(ctx, popUp)
	}
	return g.loaded(ctx)
}

// forget forgets windows that the page has opened by itself.
func (g *page) forget() {
	g.mu.Lock()
	g.popUp, g.requested = "", false
	g.mu.Unlock()
}

//go:embed page.js
var script string

// world is the name of the JavaScript world of our script. The page cannot see it or change
// what it finds there.
const world = "signalbox"

// call runs a function of page.js in the page.
func (g *page) call(ctx context.Context, function string, in, out any) error {
	args, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the arguments of %s: %w", function, err)
	}
	expression := fmt.Sprintf("(%s)(%q, %s)", script, function, args)
	for tries := 0; ; tries++ {
		err = g.step(ctx, stepTime, func(ctx context.Context) error { return g.evaluate(ctx, expression, out) })
		problem, answered := errors.AsType[*cdproto.Error](err)
		if !answered {
			return err
		}
		// The page was replaced by another one: before the function ran, or while it did.
		if acts := function == "click" || function == "fill"; acts && !strings.Contains(problem.Message, "Cannot find context") {
			return fault.Wrap(err, fault.Unavailable, "the page was replaced by another one")
		}
		if tries == 9 {
			return fault.Coded(fault.Conflict, "NOT_LOADED", "the page loads again and again: go on without it")
		}
		if err := g.loaded(ctx); err != nil {
			return err
		}
		if err := pause(ctx, time.Duration(tries)*10*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *page) evaluate(ctx context.Context, expression string, out any) error {
	created, err := cdp.Call(ctx, g.target, cdppage.CreateIsolatedWorld, cdppage.CreateIsolatedWorldParams{FrameID: cdp.FrameID(g.target.TargetID), WorldName: world})
	if err != nil {
		return err
	}
	yes := true
	res, err := cdp.Call(ctx, g.target, runtime.Evaluate, runtime.EvaluateParams{
		Expression: expression, ContextID: created.ExecutionContextID, ReturnByValue: &yes, Silent: &yes,
	})
	if err != nil {
		return err
	}
	if res.ExceptionDetails != nil {
		return fmt.Errorf("page.js: %s", clip(exception(res.ExceptionDetails), 300))
	}
	return json.Unmarshal(res.Result.Value, out)
}

func exception(d *runtime.ExceptionDetails) string {
	if d.Exception != nil {
		return d.Exception.Description
	}
	return d.Text
}
