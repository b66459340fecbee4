package toolexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/proto/signalbox/browser/v1/browserv1connect"
	"signalbox.dev/services/tool-executor/internal/browser"
)

// BrowserName is the name of the browser service.
const BrowserName = browser.Name

// BrowserConfig has the settings of a browser service, which tool-executor uses if
// Config.Browser has its URL.
type BrowserConfig struct {
	Addr        string        `env:"BROWSER_ADDR" envDefault:":8086" doc:"Address of the listener for tool-executor and for /health, /ready and /metrics."`
	TrustedKeys string        `env:"TRUSTED_KEYS,required" doc:"Public key of the service that may call the browser, as tool-executor=key."`
	Drain       time.Duration `env:"BROWSER_DRAIN" envDefault:"20s" doc:"Time after SIGTERM for calls to finish."`

	Browser browser.Settings

	TLS       mtls.Config
	Telemetry telemetry.Config
}

// Validate says what is wrong, and what would be right.
func (c *BrowserConfig) Validate() error { return c.Browser.Validate() }

// BrowserDeps are the dependencies of a BrowserService. Run closes the listener.
type BrowserDeps struct {
	Log      *slog.Logger
	Listener net.Listener
	Verifier *identity.Verifier // of tool-executor
	Gatherer prometheus.Gatherer
}

// BrowserService serves web pages to tool-executors: see package browser. It keeps nothing, so
// that instances need to know nothing of each other.
type BrowserService struct {
	cfg     BrowserConfig
	deps    BrowserDeps
	browser *browser.Service
	handler http.Handler
}

// NewBrowser wires a browser service. Without a Chromium it is never ready.
func NewBrowser(cfg BrowserConfig, deps BrowserDeps) (*BrowserService, error) {
	if deps.Log == nil || deps.Listener == nil || deps.Verifier == nil {
		return nil, errors.New("browser: log, listener and verifier are needed")
	}
	if err := conf.SetDefaults(&cfg); err != nil {
		return nil, fmt.Errorf("browser: %w", err)
	}
	b, err := browser.New(cfg.Browser, deps.Log)
	if err != nil {
		return nil, fmt.Errorf("browser: %w", err)
	}
	options, err := rpc.Server{Verifier: deps.Verifier, Log: deps.Log}.HandlerOptions()
	if err != nil {
		return nil, fmt.Errorf("browser: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(browserv1connect.NewBrowserServiceHandler(b, options...))
	httpserver.Ops{
		Checks: map[string]httpserver.Check{"chromium": func(context.Context) error {
			if why := b.Unavailable(); why != "" {
				return errors.New(why)
			}
			return nil
		}},
		Gatherer: deps.Gatherer, Log: deps.Log,
	}.Mount(mux)
	return &BrowserService{cfg, deps, b, mux}, nil
}

// Run serves until ctx is done, and then ends the browsers. It must be called only once.
func (s *BrowserService) Run(ctx context.Context) error {
	until, done := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = s.browser.Run(until) }) // it has no error
	err := httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	done()
	running.Wait()
	if err != nil {
		return fmt.Errorf("browser: %w", err)
	}
	return nil
}
