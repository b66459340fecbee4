// Package rpc configures Connect for calls between services: a signed context authenticates
// the caller, errors travel as faults, traces are propagated, messages are limited in size,
// and a panic is an internal error. A service mounts its handlers with Server.HandlerOptions,
// and makes its clients with Client.ClientOptions.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"google.golang.org/protobuf/types/known/durationpb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/panics"
	faultv1 "signalbox.dev/proto/signalbox/fault/v1"
)

// MaxMessage bounds a message in either direction. It has room for a document of 10 MiB, or a
// message with 20 MiB of files.
const MaxMessage = 32 << 20

// defaultTimeout is the timeout of a unary call without a deadline.
const defaultTimeout = 15 * time.Second

// Server has what handlers need.
type Server struct {
	Verifier *identity.Verifier
	Log      *slog.Logger
}

// HandlerOptions returns the options for a service's Connect handlers, which get the verified
// actor from identity.From.
func (s Server) HandlerOptions() ([]connect.HandlerOption, error) {
	tracing, err := otelconnect.NewInterceptor(otelconnect.WithTrustRemote(), otelconnect.WithoutMetrics())
	if err != nil {
		return nil, fmt.Errorf("trace Connect handlers: %w", err)
	}
	return []connect.HandlerOption{
		connect.WithReadMaxBytes(MaxMessage),
		connect.WithSendMaxBytes(MaxMessage),
		// A gate, not an interceptor: an unauthenticated caller cannot even send its message.
		connect.WithRequestGate(s.authenticate),
		connect.WithInterceptors(tracing, serverInterceptor{s.Log}),
		// Inside the interceptors, so that a panic is reported like any other error.
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
			return &panics.Error{Value: p, Stack: debug.Stack()}
		}),
	}, nil
}

// Client has what clients of one service need.
type Client struct {
	Signer *identity.Signer
	// Audience is the called service's name.
	Audience string
}

// ClientOptions returns the options for a Connect client. Its calls carry the context's actor,
// signed, and return errors as faults.
func (c Client) ClientOptions() ([]connect.ClientOption, error) {
	tracing, err := otelconnect.NewInterceptor(otelconnect.WithoutMetrics())
	if err != nil {
		return nil, fmt.Errorf("trace Connect clients: %w", err)
	}
	return []connect.ClientOption{
		connect.WithReadMaxBytes(MaxMessage),
		connect.WithSendMaxBytes(MaxMessage),
		// Not compressed: between nearby services gzip costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(&clientInterceptor{c.Signer, c.Audience}, tracing),
	}, nil
}

// NewHTTPClient returns the client for calls between services: HTTP/2 without TLS for http
// URLs and with the given credentials, which may be nil, for https URLs, a few connections for
// many calls, which spread over the replicas behind a name, and pings to detect broken
// connections. It follows no redirects and uses no proxy.
func NewHTTPClient(secure *mtls.Credentials) *http.Client { return newHTTPClient(secure, spreadLife) }

func newHTTPClient(secure *mtls.Credentials, life time.Duration) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	open := func() *http.Transport {
		return &http.Transport{
			Protocols:       protocols,
			DialContext:     dialer.DialContext,
			DialTLSContext:  secure.Dialer(dialer, "h2"),
			IdleConnTimeout: 90 * time.Second,
			HTTP2:           &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 3 * time.Second},
		}
	}
	return &http.Client{
		Transport:     &spread{open: open, life: life},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (s Server) authenticate(ctx context.Context, spec connect.Spec, _ connect.Peer, h http.Header) (context.Context, error) {
	actor, err := s.Verifier.Verify(h.Get(identity.Header))
	if err != nil {
		s.Log.WarnContext(ctx, "call refused", "procedure", spec.Procedure, "error", err)
		return nil, toConnect(fault.New(fault.Unauthenticated, "the calling service did not prove who it is"))
	}
	return identity.With(ctx, actor), nil
}

// serverInterceptor converts and reports the errors of handlers.
type serverInterceptor struct{ log *slog.Logger }

func (i serverInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err != nil {
			i.report(ctx, req.Spec().Procedure, err)
			return nil, toConnect(err)
		}
		return res, nil
	}
}

func (i serverInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise the caller is gone, and the error is that of writing to it
			i.report(ctx, conn.Spec().Procedure, err)
		}
		return toConnect(err)
	}
}

func (serverInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// report logs what callers are not told: internal errors, and the causes of unavailability.
func (i serverInterceptor) report(ctx context.Context, procedure string, err error) {
	switch fault.KindOf(err) {
	case fault.Internal:
		i.log.ErrorContext(ctx, "call failed", "procedure", procedure, "error", err)
	case fault.Unavailable, fault.Deadline:
		i.log.WarnContext(ctx, "call not served", "procedure", procedure, "error", err)
	}
}

type clientInterceptor struct {
	signer   *identity.Signer
	audience string
}

func (i *clientInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := i.sign(ctx, req.Header()); err != nil {
			return nil, err
		}
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
			defer cancel()
		}
		res, err := next(ctx, req)
		return res, fromConnect(ctx, err)
	}
}

func (i *clientInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if err := i.sign(ctx, conn.RequestHeader()); err != nil {
			return failedConn{conn, err}
		}
		return faultConn{conn, ctx}
	}
}

func (*clientInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (i *clientInterceptor) sign(ctx context.Context, h http.Header) error {
	actor, ok := identity.From(ctx)
	if !ok {
		return fmt.Errorf("call %s: the context carries no identity", i.audience)
	}
	token, err := i.signer.Sign(actor, i.audience)
	if err != nil {
		return err
	}
	h.Set(identity.Header, token)
	return nil
}

// failedConn is a stream that could not be signed. Every use returns the error, and closing it
// sends nothing.
type failedConn struct {
	connect.StreamingClientConn
	err error
}

func (c failedConn) Send(any) error       { return c.err }
func (c failedConn) Receive(any) error    { return c.err }
func (c failedConn) CloseRequest() error  { return nil }
func (c failedConn) CloseResponse() error { return nil }

// faultConn returns a stream's errors as faults.
type faultConn struct {
	connect.StreamingClientConn
	ctx context.Context //nolint:containedctx // a stream has one context for its whole life
}

func (c faultConn) Receive(msg any) error {
	return fromConnect(c.ctx, c.StreamingClientConn.Receive(msg))
}

func toConnect(err error) error {
	f := fault.From(err)
	ce := connect.NewError(f.Kind.ConnectCode(), errors.New(f.Message))
	detail := &faultv1.Fault{Code: f.Code, Message: f.Message}
	if f.RetryAfter > 0 {
		detail.RetryAfter = durationpb.New(f.RetryAfter)
	}
	if d, err := connect.NewErrorDetail(detail); err == nil {
		ce.AddDetail(d)
	}
	return ce
}

// fromConnect turns a Connect error into a fault. An error without our detail does not come
// from a handler: the service could not be reached, or died.
func fromConnect(ctx context.Context, err error) error {
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	for _, d := range ce.Details() {
		v, detailErr := d.Value()
		if detailErr != nil {
			continue
		}
		if f, ok := v.(*faultv1.Fault); ok {
			if ce.Code() == connect.CodeUnauthenticated {
				// This service was not authenticated: keys or clocks are wrong. The person
				// for whom it acts is signed in, and must not be told otherwise.
				return fmt.Errorf("refused by the called service: %w", err)
			}
			return &fault.Error{Kind: fault.KindOfCode(ce.Code()), Code: f.GetCode(), Message: f.GetMessage(), RetryAfter: f.GetRetryAfter().AsDuration()}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	switch ce.Code() {
	case connect.CodeDeadlineExceeded:
		return fault.Wrap(err, fault.Deadline, "a part of the system took too long: try again")
	case connect.CodeResourceExhausted:
		return fault.Wrap(err, fault.TooLarge, "the message is too large")
	}
	return fault.Wrap(err, fault.Unavailable, "a service cannot be reached: try again in a moment")
}
