package browser

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/panics"
)

const (
	startTime = 45 * time.Second // of a browser
	stopTime  = 4 * time.Second  // to do something that does not depend on a page
)

// process is a running browser, with the pages of one workspace.
type process struct {
	log   *slog.Logger
	proxy *proxy
	ctx   context.Context // chromedp's; it ends with the browser
	main  *chromedp.Context
	kill  context.CancelFunc
	gone  chan struct{} // closed when nothing of it is left

	// Service.mu guards these.
	pages map[id.Session]*page
}

// start starts a browser. It returns when the browser answers.
func (l *launcher) start(ctx context.Context, guard *netguard.Guard, log *slog.Logger) (*process, error) {
	dir, err := newFolder()
	if err != nil {
		return nil, fmt.Errorf("make the browser's folder: %w", err)
	}
	listener, addr, err := l.listen(dir.path)
	if err != nil {
		_ = dir.remove()
		return nil, fmt.Errorf("listen for the browser's requests: %w", err)
	}
	p := &process{log: log, proxy: newProxy(guard, log), gone: make(chan struct{}), pages: map[id.Session]*page{}}
	// The browser outlives the call that needs it first.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	allocated, _ := chromedp.NewExecAllocator(background, l.options(dir.path, addr)...) // stop cancels it
	opened, cancel := chromedp.NewContext(allocated, quiet(background, log)...)
	p.ctx, p.main, p.kill = opened, chromedp.FromContext(opened), stop
	var serving sync.WaitGroup
	serving.Go(func() { p.proxy.serve(listener) })
	go func() { // ends when the browser has
		<-opened.Done()
		p.proxy.close()
		serving.Wait()
		cancel() // waits for the process
		if err := dir.remove(); err != nil {
			log.WarnContext(background, "folder of a browser not removed", "dir", dir.path, "error", err)
		}
		close(p.gone)
	}()
	started := make(chan error, 1)
	go func() {
		started <- panics.Try(func() error { return chromedp.Do(opened) })
	}()
	timer := time.NewTimer(startTime)
	defer timer.Stop()
	select {
	case err = <-started:
	case <-timer.C:
		err = fmt.Errorf("it does not answer after %v", startTime)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		err = chromedp.ListenBrowser(opened, p.onTarget)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return p, nil
}

// quiet makes chromedp log at the level debug: pages can cause its messages.
func quiet(ctx context.Context, log *slog.Logger) []chromedp.ContextOption {
	logf := func(format string, args ...any) {
		log.DebugContext(ctx, "chromedp", "message", clip(fmt.Sprintf(format, args...), 500))
	}
	return []chromedp.ContextOption{chromedp.WithLogf(logf), chromedp.WithErrorf(logf)}
}

// alive reports whether the browser runs.
func (p *process) alive() bool { return p.ctx.Err() == nil }

// answers reports whether the browser still answers.
func (p *process) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	done := make(chan bool, 1)
	go func() {
		_, err := cdp.Call(ctx, p.main.Browser, browser.GetVersion, cdp.Empty{})
		done <- err == nil
	}()
	select {
	case ok := <-done:
		return ok
	case <-ctx.Done():
		return false
	}
}

// onTarget is called for each event of the browser. Pages that other pages open are shown in
// the page that opened them (page.popUp).
func (p *process) onTarget(ev any) {
	e, ok := ev.(*target.EventTargetCreated)
	if !ok || e.TargetInfo.Type != "page" || e.TargetInfo.OpenerID == "" {
		return
	}
	go p.closePopUp(e.TargetInfo.TargetID)
}

func (p *process) closePopUp(popUp target.ID) {
	ctx, cancel := context.WithTimeout(p.ctx, stopTime)
	defer cancel()
	_, err := cdp.Call(ctx, p.main.Browser, target.CloseTarget, target.CloseTargetParams{TargetID: popUp})
	if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "No target") {
		p.log.DebugContext(ctx, "pop-up not closed", "error", err)
	}
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
