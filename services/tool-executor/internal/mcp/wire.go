package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"
	"sync/atomic"
)

// Bounds of one operation, of all its requests together.
const (
	maxRequests = 64
	maxBytes    = 4 << 20
	maxValues   = 100_000 // JSON values, each of which takes some hundred bytes when decoded
	maxDepth    = 64      // of JSON
	maxEvents   = 500     // for each of which the SDK allocates some 64 KiB
)

// errLimit is in the chain of each error about a bound.
var errLimit = errors.New("the server went over a limit")

// operation bounds the requests of one operation. It is an http.RoundTripper.
type operation struct {
	next http.RoundTripper
	// ctx ends the operation, with all its requests, also those that the SDK sends under
	// contexts of its own.
	ctx context.Context //nolint:containedctx // the operation's own
	end context.CancelFunc
	// link is what the operation uses; nil before it has one, and if it is a link's own.
	link *link

	requests              atomic.Int64
	bytes, values, events atomic.Int64
	mu                    sync.Mutex // guards failure
	failure               error
}

// RoundTrip implements http.RoundTripper.
func (o *operation) RoundTrip(req *http.Request) (*http.Response, error) {
	if o.requests.Add(1) > maxRequests {
		return nil, o.fail(fmt.Errorf("%w: it needs more than %d requests", errLimit, maxRequests))
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(o.ctx, cancel) //nolint:contextcheck // the operation ends its requests
	end := func() { stop(); cancel() }
	res, err := o.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		end()
		return nil, o.fail(err)
	}
	if res.StatusCode >= http.StatusBadRequest {
		_ = o.fail(refusalOf(res)) // the SDK may go on
	}
	res.Body = o.bounded(res, end)
	return res, nil
}

// bounded returns an answer's body within the operation's bounds. Its end is called once it is
// closed.
func (o *operation) bounded(res *http.Response, end func()) *body {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // anything else is no event stream
	return &body{ReadCloser: res.Body, operation: o, scanner: scanner{sse: kind == "text/event-stream", lineStart: true}, end: end}
}

// renew lets the operation go on as if it had received nothing yet.
func (o *operation) renew() {
	o.requests.Store(0)
	o.bytes.Store(0)
	o.values.Store(0)
	o.events.Store(0)
}

// progressed lets the operation go on as if the messages about its progress had not come. Their
// bytes count.
func (o *operation) progressed() {
	o.values.Store(0)
	o.events.Store(0)
}

// forgive forgets a failure that had no consequences.
func (o *operation) forgive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure = nil
}

// fail remembers the latest failure, because the SDK does not always return it.
func (o *operation) fail(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A challenge outlives what the SDK tries after it.
	if _, challenged := errors.AsType[*challenge](o.failure); !errors.Is(o.failure, errLimit) && (!challenged || errors.Is(err, errLimit)) {
		o.failure = err
	}
	return err
}

// cause returns the reason of the operation's failure, as far as HTTP knows it.
func (o *operation) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

// statusError is the status of an answer that is no success.
type statusError int

// Error implements error.
func (s statusError) Error() string {
	return fmt.Sprintf("the server answers %d %s", int(s), http.StatusText(int(s)))
}

// body is an answer's body within the operation's bounds.
type body struct {
	io.ReadCloser

	operation *operation
	scanner   scanner
	err       error
	end       func()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	if b.err = b.check(p[:n]); b.err != nil {
		return 0, b.operation.fail(b.err)
	}
	return n, err
}

func (b *body) check(p []byte) error {
	if b.operation.bytes.Add(int64(len(p))) > maxBytes {
		return fmt.Errorf("%w: it sends more than %d bytes", errLimit, maxBytes)
	}
	values, events, err := b.scanner.scan(p)
	switch {
	case err != nil:
		return err
	case b.operation.values.Add(values) > maxValues:
		return fmt.Errorf("%w: it sends more than %d JSON values", errLimit, maxValues)
	case b.operation.events.Add(events) > maxEvents:
		return fmt.Errorf("%w: it sends more than %d events", errLimit, maxEvents)
	}
	return nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// scanner follows JSON, or the JSON in the data lines of an event stream, as it arrives. It
// counts values, and refuses JSON that is too deep for a recursive decoder.
type scanner struct {
	sse bool

	depth             int
	inString, escaped bool

	lineStart bool   // nothing of the line was seen
	field     []byte // the line's field name so far
	inData    bool   // the line is data
}

// scan takes the next bytes.
func (s *scanner) scan(p []byte) (values, events int64, err error) {
	for _, c := range p {
		switch {
		case s.sse && c == '\n':
			// A line that ends within a string could be read in two ways.
			if s.inString {
				return values, events, fmt.Errorf("%w: a line of its event stream ends within a string", errLimit)
			}
			if s.lineStart {
				s.depth = 0
				events++
			}
			s.lineStart, s.inData, s.field = true, false, s.field[:0]
			continue
		case s.sse && c == '\r':
			continue
		case s.sse && !s.inData:
			s.lineStart = false
			if c == ':' && string(s.field) == "data" {
				s.inData = true
			} else if len(s.field) < len("data:") {
				s.field = append(s.field, c)
			}
			continue
		}
		v, err := s.next(c)
		if err != nil {
			return values, events, err
		}
		values += v
	}
	return values, events, nil
}

// next takes one byte of JSON and returns how many values begin with it, at most.
func (s *scanner) next(c byte) (int64, error) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.inString && c == '\\':
		s.escaped = true
	case c == '"':
		s.inString = !s.inString
	case s.inString:
	case c == '[' || c == '{':
		if s.depth++; s.depth > maxDepth {
			return 0, fmt.Errorf("%w: its JSON is deeper than %d levels", errLimit, maxDepth)
		}
		return 1, nil
	case c == ']' || c == '}':
		s.depth = max(s.depth-1, 0)
	case c == ',' || c == ':':
		return 1, nil
	}
	return 0, nil
}
