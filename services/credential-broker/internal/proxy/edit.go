package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

// edited is the caller's body with the changes that a profile asks for. The body itself stays
// as it came: the next account's profile may ask for others.
type edited struct {
	by      *transform.Messages
	edits   transform.Edits
	answers *transform.Answers // nil if answers stay as they are
}

// edit finds out what to change for the chosen account, unless the previous one's profile
// asked for the same.
func (x *exchange) edit(m *transform.Messages) *refusal {
	if m == x.edited.by {
		return nil
	}
	x.edited = edited{by: m}
	if m == nil || len(x.body) == 0 {
		return nil
	}
	var err error
	if x.edited.edits, x.edited.answers, err = m.Request(x.body); err != nil {
		return refused(http.StatusBadRequest, "request_too_large", err.Error(), err)
	}
	return nil
}

// putBody gives a request its body.
func (x *exchange) putBody(req *http.Request) {
	body, edits := x.body, x.edited.edits
	if len(body) == 0 {
		return
	}
	req.GetBody = func() (io.ReadCloser, error) {
		b := &sending{Reader: bytes.NewReader(body)}
		if len(edits) > 0 {
			b.Reader = edits.Reader(body)
		}
		x.sent = &b.closed
		return b, nil
	}
	req.Body, _ = req.GetBody()
	req.ContentLength = int64(edits.Size(len(body)))
}

// sending is a body that is being sent. It is closed once it was written or given up.
type sending struct {
	io.Reader
	closed atomic.Bool
}

// Close implements io.Closer.
func (s *sending) Close() error {
	s.closed.Store(true)
	return nil
}

const (
	maxAnswer = 8 << 20 // of an answer that is held to be translated
	maxLinked = 1 << 20 // of an answer that is held for the URLs in it
)

// translate reads a whole answer and gives the names of tools in it back as the caller knows
// them.
func (a *answer) translate() (*answer, *refusal) {
	x := a.x
	if isEncoded(a.res) {
		return a.fail(x.unusable("with a compressed body, which was not requested"), pool.Service)
	}
	body, r := a.hold(maxAnswer)
	switch {
	case r != nil:
		return a.fail(r, r.reason)
	case len(body) > maxAnswer:
		return a.fail(x.unusable(fmt.Sprintf("with more than %d MiB, too much to translate the names of tools in it: request a stream", maxAnswer>>20)), pool.OK)
	case len(body) > 0 && !json.Valid(body):
		return a.fail(x.unusable("with something that is neither whole JSON nor an event stream"), pool.Service)
	}
	a.head = x.edited.answers.Whole(body).Apply(body)
	a.fitLength()
	return a, nil
}

// relink rewrites the URLs in an answer that its client follows, so that they lead through the
// proxy. A larger answer stays as it is.
func (a *answer) relink() (*answer, *refusal) {
	body, r := a.hold(maxLinked)
	if r != nil {
		return a.fail(r, r.reason)
	}
	a.head = body
	if len(body) <= maxLinked {
		a.head = a.places().edits(body, a.route.URLs).Apply(body)
		a.fitLength()
	}
	return a, nil
}

// hold reads an answer to its end, or to one byte over the limit. It takes room among the
// request bodies, but not from the workspace's share: the provider has done the work already.
func (a *answer) hold(limit int64) ([]byte, *refusal) {
	x, size := a.x, limit
	x.bodySent()
	if n := a.res.ContentLength; 0 <= n && n < size {
		size = n
	}
	ctx, cancel := context.WithTimeout(x.ctx, bodyQueue)
	defer cancel()
	if r := x.queued(x.p.bodies.Acquire(ctx, size), outcomeUnavailable, busyBodies); r != nil {
		r.reason = pool.Cancelled
		return nil, r
	}
	x.held = size
	var b bytes.Buffer
	for {
		a.watch.start(&x.p.waits.idle)
		_, err := io.CopyN(&b, a.res.Body, min(64<<10, limit+1-int64(b.Len())))
		switch {
		case errors.Is(err, io.EOF), int64(b.Len()) > limit:
			x.held = min(size, int64(b.Len()))
			x.p.bodies.Release(size - x.held)
			return b.Bytes(), nil
		case err != nil:
			return nil, a.unanswered(err)
		}
	}
}

// usageFilter keeps the members of an answer that count tokens, wherever in it they are; nil if
// nothing is counted.
func (a *answer) usageFilter() *scan.PathFilter {
	if a.res.StatusCode != http.StatusOK || !a.x.tally.Counts() || !isJSON(a.res) {
		return nil
	}
	return scan.NewPathFilter(append(a.x.tally.Paths(), []string{"id"})...)
}

// readUsage counts the tokens of an answer that has arrived whole. An answer whose id is in the
// path existed before, and was counted then.
func (a *answer) readUsage(f *scan.PathFilter) {
	kept, ok := f.Kept()
	id := scan.TopString(kept, "id")
	known := a.route.Stream == nil && len(id) > 0 && strings.Contains(a.x.path+"/", "/"+string(id)+"/")
	if ok && !known {
		a.x.tally.Read(kept)
	}
}
