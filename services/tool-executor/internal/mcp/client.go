package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/visible"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	listTimeout = 10 * time.Second
	callTimeout = time.Minute
	// longestCall is how long a call may take whose server reports progress.
	longestCall = 10 * time.Minute
	// farewell is how long after its end an operation may tell the server that it is over.
	farewell = 2 * time.Second

	// HeaderTimeout is how long a server may take to begin its answer.
	HeaderTimeout = callTimeout

	// lastWords is how long a cancelled operation's requests live on, to send the cancellation.
	lastWords = 200 * time.Millisecond

	maxPages = 32
	maxTools = 256
)

// client runs operations on servers.
type client struct {
	// transport returns how a server is reached.
	transport func(Server) (endpoint string, rt http.RoundTripper)
	// changed is called when a server announces that its tools have changed; may be nil.
	changed func(Server)
	// log gets what the operator's servers say; processes is how many of them may run.
	log       *slog.Logger
	processes int
	// unauthorized returns the result of a call that was refused for want of a sign-in; may be
	// nil.
	unauthorized func(context.Context, Server, error) (tool.Result, bool)

	shrinking sync.Mutex // for the memory of a picture's pixels: one picture at a time

	links   links
	running sync.WaitGroup // the SDK's work, which may last longer than its operation
}

// list returns the definitions of a server's tools.
func (c *client) list(ctx context.Context, s Server) ([]Definition, error) {
	return do(ctx, c, s, s.key(id.Session{}), listTimeout, listTools)
}

func listTools(ctx context.Context, session *mcp.ClientSession) (all []Definition, err error) {
	has := session.InitializeResult().Capabilities
	more := added(has)
	if has != nil && has.Tools == nil && more != nil {
		return more, nil
	}
	params, seen := &mcp.ListToolsParams{}, map[string]bool{}
	for range maxPages {
		page, err := session.ListTools(ctx, params)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tools {
			if len(all) == maxTools {
				return nil, fmt.Errorf("%w: it has more than %d tools", errLimit, maxTools)
			}
			all = append(all, define(t))
		}
		if page.NextCursor == "" {
			return append(all, more...), nil
		}
		if seen[page.NextCursor] {
			return nil, fmt.Errorf("%w: its list of tools has no end", errLimit)
		}
		seen[page.NextCursor] = true
		params = &mcp.ListToolsParams{Cursor: page.NextCursor}
	}
	return nil, fmt.Errorf("%w: its list of tools has more than %d pages", errLimit, maxPages)
}

// errSent is in the chain of an error after a call may have reached the server.
var errSent = errors.New("the call was sent")

// rejectedByTransport is the code of the SDK's own error for a request that HTTP did not carry.
const rejectedByTransport = -32005

// call calls a tool, and reports what the server says of its progress. An error without errSent
// means that the call did not reach the server.
func (c *client) call(ctx context.Context, s Server, name string, args any, report func(tool.Progress)) (tool.Result, error) {
	return c.perform(ctx, s, func(ctx context.Context, session *mcp.ClientSession) (tool.Result, error) {
		if s.wantsHeaders(name) {
			if _, err := listTools(ctx, session); err != nil {
				return tool.Result{}, err
			}
		}
		params := &mcp.CallToolParams{Name: name, Arguments: args}
		if op, ok := ctx.Value(operationKey{}).(*operation); ok {
			token, done := op.link.watch(op, report)
			defer done()
			params.SetProgressToken(token)
		}
		res, err := session.CallTool(ctx, params)
		if err != nil {
			return tool.Result{}, err
		}
		return c.resultOf(s, res), nil
	})
}

// perform runs f in the session of the context's conversation. The server's refusal is a result.
func (c *client) perform(ctx context.Context, s Server, f func(context.Context, *mcp.ClientSession) (tool.Result, error)) (tool.Result, error) {
	actor, _ := identity.From(ctx) // without one, nothing is remembered
	return do(ctx, c, s, s.key(actor.Session), longestCall, func(ctx context.Context, session *mcp.ClientSession) (tool.Result, error) {
		r, err := f(ctx, session)
		if c, ok := errors.AsType[*challenge](causeIn(ctx)); ok && err != nil {
			return tool.Result{}, errors.Join(errSent, err, c)
		}
		if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok && refusal.Code != rejectedByTransport {
			return tool.Errorf("mcp_error", "the MCP server %s refuses the call: %s", s.Name, clip(visible.Text(refusal.Message), maxSaid)), nil
		}
		if err != nil {
			return tool.Result{}, errors.Join(errSent, err)
		}
		return r, nil
	})
}

// do runs f with a protocol session. It returns at the end of ctx or timeout at the latest, even
// if the SDK does not.
func do[T any](ctx context.Context, c *client, s Server, key linkKey, timeout time.Duration, f func(context.Context, *mcp.ClientSession) (T, error)) (result T, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	opCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	op := &operation{ctx: opCtx, end: end}
	type answer struct {
		result T
		err    error
	}
	done := make(chan answer, 1) // buffered so that a late one can end
	c.running.Go(func() {
		defer end()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, end) })()
		var a answer
		a.err = panics.Try(func() (err error) {
			a.result, err = run(ctx, c, op, s, key, f)
			return err
		})
		done <- a
	})
	select {
	case a := <-done:
		return a.result, op.explain(ctx, a.err)
	case <-ctx.Done():
		return result, op.explain(ctx, errors.Join(errSent, context.Cause(ctx)))
	}
}

// run joins a session and runs f with it, again if the server has forgotten the session: then it
// has done nothing.
func run[T any](ctx context.Context, c *client, op *operation, s Server, key linkKey, f func(context.Context, *mcp.ClientSession) (T, error)) (result T, err error) {
	for again := false; ; again = true {
		l, err := c.join(ctx, s, key)
		if err != nil {
			return result, err
		}
		op.next, op.link = l.base.next, l
		l.base.renew()
		ended := context.AfterFunc(l.base.ctx, op.end) //nolint:contextcheck // the session ends its operations
		result, err = f(context.WithValue(ctx, operationKey{}, op), l.session)
		if err != nil && l.base.cause() != nil {
			err = errors.Join(err, l.base.cause())
		}
		if ctx.Err() != nil {
			// The SDK tells the server in the background that the call is cancelled, and
			// closing the session would overtake that.
			select {
			case <-op.ctx.Done():
			case <-time.After(lastWords):
			}
		}
		ended()
		forgotten := l.forgotten(op, err)
		if forgotten || errors.Is(err, mcp.ErrConnectionClosed) || l.process && l.base.cause() != nil {
			c.retire(l, err)
		}
		c.release(l)
		if again || !forgotten {
			return result, err
		}
		op.forgive()
	}
}

// explain returns err with what the HTTP layer knows about it.
func (o *operation) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := o.cause(); cause != nil && ctx.Err() == nil {
		return errors.Join(err, cause)
	}
	return err
}

const notPublic = "its address is not a public one, or it redirects to one that is not, and the operator has not allowed that"

// why explains an error to people. It shows nothing of the operator's network.
func why(err error) string {
	c, isChallenge := errors.AsType[*challenge](err)
	status, isStatus := errors.AsType[statusError](err)
	_, isNetwork := errors.AsType[net.Error](err)
	refusal, isRefusal := errors.AsType[*jsonrpc.Error](err)
	ended, isProcess := errors.AsType[processError](err)
	broker, isBroker := errors.AsType[brokerError](err)
	switch {
	case errors.Is(err, netguard.ErrRefused):
		return notPublic
	case errors.Is(err, netguard.ErrTooLarge), errors.Is(err, errLimit):
		return clip(visible.Text(limitOf(err)), maxSaid)
	case isChallenge:
		return c.why()
	case errors.Is(err, errBusy):
		return errBusy.Error()
	case isProcess:
		return ended.Error()
	case isBroker:
		return broker.Error()
	case errors.Is(err, errRedirect):
		return errRedirect.Error()
	case isStatus && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return status.Error() + ": it needs a valid credential"
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer in time"
	case isNetwork:
		return "it cannot be reached"
	case isRefusal && refusal.Code != rejectedByTransport:
		return "it refuses: " + clip(visible.Text(refusal.Message), maxSaid)
	case isStatus:
		return status.Error()
	}
	return "it does not speak MCP as expected"
}

// limitOf returns the message of the limit in err's chain.
func limitOf(err error) string {
	for _, e := range flatten(err) {
		if errors.Is(e, errLimit) || errors.Is(e, netguard.ErrTooLarge) {
			return e.Error()
		}
	}
	return errLimit.Error()
}

// flatten returns the errors that errors.Join has joined.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}
