package toolexecutor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"signalbox.dev/pkg/rpc"
	"signalbox.dev/proto/signalbox/browser/v1/browserv1connect"
	"signalbox.dev/services/tool-executor/internal/browser"
)

// BrowserRelay is called first by programs that may start browsers; see browser.Relay.
func BrowserRelay() { browser.Relay() }

// localBrowser is the Config.Browser of a process with a browser of its own.
const localBrowser = "local"

// openBrowser returns the browser, and a function that says why it cannot be used now; both may
// be nil.
func (s *Service) openBrowser() (browserv1connect.BrowserServiceClient, func() string, error) {
	switch s.cfg.Browser {
	case "":
		return nil, nil, nil
	case localBrowser:
		b, err := browser.New(s.cfg.LocalBrowser, s.deps.Log)
		if err != nil {
			return nil, nil, err
		}
		s.browser = b
		return b, b.Unavailable, nil
	}
	urls, err := browserURLs(s.cfg.Browser)
	if err != nil {
		return nil, nil, err
	}
	options, err := rpc.Client{Signer: s.deps.Signer, Audience: browser.Name}.ClientOptions()
	if err != nil {
		return nil, nil, err
	}
	var clients []browserv1connect.BrowserServiceClient
	for _, u := range urls {
		clients = append(clients, browserv1connect.NewBrowserServiceClient(s.deps.HTTP, u, options...))
	}
	return browser.Spread(clients), nil, nil
}

// browserURLs reads a list of URLs.
func browserURLs(list string) ([]string, error) {
	var out []string
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimRight(strings.TrimSpace(text), "/")
		if u, err := url.Parse(text); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("TOOL_EXECUTOR_BROWSER: %q is no URL: use http://browser:8086, several of them separated by commas, or local", text)
		}
		out = append(out, text)
	}
	return out, nil
}

// validateBrowser says what is wrong with the settings of the browser.
func (c *Config) validateBrowser() error {
	err := c.LocalBrowser.Validate()
	if c.Browser != "" && c.Browser != localBrowser {
		_, wrong := browserURLs(c.Browser)
		err = errors.Join(err, wrong)
	}
	return err
}

// runBrowser runs the browser until the function that it returns is called, which waits for its
// end: calls may use it until the last one has ended.
func (s *Service) runBrowser(ctx context.Context) (stop func()) {
	if s.browser == nil {
		return func() {}
	}
	until, done := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = s.supervise(until, "browser", s.browser.Run) }) // it has no error
	return func() {
		done()
		running.Wait()
	}
}
