package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
)

// Config configures a client. HTTP and BaseURL are required.
type Config struct {
	// HTTP sends the requests. It needs no timeout, because those below apply.
	HTTP *http.Client
	// BaseURL is the URL of the broker's egress, to which the dialect's path is appended.
	BaseURL string
	// Headers, if set, returns additional headers of one request, such as the workspace token.
	Headers func(context.Context) (http.Header, error)

	FirstByte time.Duration // until the response headers arrive; default 5 min
	Idle      time.Duration // between two reads of the answer; default 2 min
	Limits    Limits
}

// Limits bounds requests and answers. A zero field means its default.
type Limits struct {
	Request  int   // bytes of a request body; default 32 MiB
	Response int64 // bytes of an answer on the wire; default 32 MiB
	Event    int   // bytes of one event of it; default 8 MiB
	Blocks   int   // content blocks of an answer; default 4,096
	Calls    int   // tool calls of an answer; default 128
}

// WithDefaults returns the limits with defaults for zero fields.
func (l Limits) WithDefaults() Limits { return l.withDefaults() }

func (l Limits) withDefaults() Limits {
	if l.Request <= 0 {
		l.Request = 32 << 20
	}
	if l.Response <= 0 {
		l.Response = 32 << 20
	}
	if l.Event <= 0 {
		l.Event = 8 << 20
	}
	if l.Blocks <= 0 {
		l.Blocks = 4096
	}
	if l.Calls <= 0 {
		l.Calls = 128
	}
	return l
}

const maxErrorBody = 64 << 10

var (
	errFirstByte = errors.New("no response headers in time")
	errIdle      = errors.New("the stream was silent for too long")
)

// Transport posts requests of one dialect and opens their streams. It is safe for
// concurrent use.
type Transport struct {
	cfg Config
	url string
}

// NewTransport returns a Transport that posts to BaseURL + path.
func NewTransport(cfg Config, path string) (*Transport, error) {
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("base URL %q of a model provider has to be an http or https URL", cfg.BaseURL)
	}
	if cfg.HTTP == nil {
		return nil, errors.New("a model client needs an HTTP client")
	}
	if cfg.FirstByte <= 0 {
		cfg.FirstByte = 5 * time.Minute
	}
	if cfg.Idle <= 0 {
		cfg.Idle = 2 * time.Minute
	}
	cfg.Limits = cfg.Limits.withDefaults()
	return &Transport{cfg: cfg, url: strings.TrimRight(cfg.BaseURL, "/") + path}, nil
}

// Limits returns the effective limits.
func (t *Transport) Limits() Limits { return t.cfg.Limits }

// Open posts body and returns the stream of the answer. The error is an *Error, an Unavailable
// fault if the connection is refused, or the cause of ctx.
func (t *Transport) Open(ctx context.Context, header http.Header, body []byte, dec Decoder) (*Stream, error) {
	if len(body) > t.cfg.Limits.Request {
		return nil, Refuse(KindTooLarge, "The conversation with its files is %d bytes long, %d can be sent to a model. Start a new session, or attach smaller files.", len(body), t.cfg.Limits.Request)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(t.cfg.FirstByte, func() { cancel(NewError(KindTimeout, errFirstByte, "")) })
	stop := func() {
		timer.Stop()
		cancel(nil)
	}
	resp, err := t.post(ctx, header, body)
	if err != nil {
		err = failed(ctx, err)
		stop()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || !isEventStream(resp.Header) {
		err := refused(resp)
		_ = resp.Body.Close()
		stop()
		return nil, err
	}
	// From here on, the idle timer with its own error replaces the timer for the headers.
	timer.Stop()
	w := &watched{r: resp.Body, left: t.cfg.Limits.Response, idle: t.cfg.Idle, cancel: cancel}
	w.timer = time.AfterFunc(t.cfg.Idle, func() { cancel(NewError(KindTimeout, errIdle, "")) })
	return newStream(ctx, w, dec, t.cfg.Limits), nil
}

func (t *Transport) post(ctx context.Context, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Accept-Encoding", "identity") // the default, gzip, delays tokens
	if t.cfg.Headers != nil {
		own, err := t.cfg.Headers(ctx)
		if err != nil {
			return nil, fmt.Errorf("make request headers: %w", err)
		}
		setAll(req.Header, own)
	}
	setAll(req.Header, header)
	return t.cfg.HTTP.Do(req)
}

func setAll(dst, src http.Header) {
	for k, v := range src {
		dst[http.CanonicalHeaderKey(k)] = v
	}
}

// failed returns the error for a request without a response.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		// Nothing was sent, and not the provider but the broker is unavailable.
		return fault.Wrap(err, fault.Unavailable, "the way to the model providers is not available")
	}
	return broken(KindNetwork, err)
}

// refused returns the error for a response that is not a stream. Some servers report a failure
// as a 200 with JSON.
func refused(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	e := StatusError(resp.StatusCode, resp.Header, body)
	if resp.StatusCode < 400 && e.Type == "" && e.Code == "" {
		e = NewError(KindServer, nil, "the answer is %s, not an event stream", resp.Header.Get("Content-Type"))
		e.Status, e.Type, e.Retryable = resp.StatusCode, "not_a_stream", false
	}
	return e
}

// isEventStream also accepts a missing content type, which some servers leave out.
func isEventStream(h http.Header) bool {
	v := h.Get("Content-Type")
	if v == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(v)
	return err == nil && media == "text/event-stream"
}
