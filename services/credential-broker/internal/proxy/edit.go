package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

// edited is what a profile makes of the caller's body. The body itself stays as it
// came: the next account's profile may want another.
type edited struct {
	by      *transform.Messages
	edits   transform.Edits
	answers *transform.Answers // nil: answers go on as they are
}

// edit finds out what is to be changed for the account that was chosen, unless the one
// before it wanted the same.
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

// putBody gives a request the body.
func (x *exchange) putBody(req *http.Request) {
	body, edits := x.body, x.edited.edits
	if len(body) == 0 {
		return
	}
	open := func() (io.ReadCloser, error) {
		b := &sending{Reader: bytes.NewReader(body)}
		if len(edits) > 0 {
			b.Reader = edits.Reader(body)
		}
		x.sent = &b.closed
		return b, nil
	}
	req.Body, _ = open()
	req.GetBody = open
	req.ContentLength = int64(edits.Size(len(body)))
}

// sending is a body that is being sent; it is closed when it was written, or is not
// going to be.
type sending struct {
	io.Reader
	closed atomic.Bool
}

// Close implements io.Closer.
func (s *sending) Close() error {
	s.closed.Store(true)
	return nil
}

// maxAnswer bounds an answer that is not streamed and has to be held to be translated.
const maxAnswer = 8 << 20

// translate reads a whole answer, whose length may change, and gives the names of
// tools in it back as the caller knows them.
func (a *answer) translate() (*answer, *refusal) {
	x := a.x
	if isEncoded(a.res) {
		return a.fail(x.unusable("compressed, which was not asked for"), pool.Service)
	}
	body, r := a.hold(maxAnswer)
	switch {
	case r != nil:
		return a.fail(r, r.reason)
	case len(body) > maxAnswer:
		return a.fail(x.unusable(fmt.Sprintf("with more than %d MiB, so that the names of tools in it cannot be translated: ask for a stream", maxAnswer>>20)), pool.OK)
	case len(body) > 0 && !json.Valid(body):
		return a.fail(x.unusable("with something that is neither whole JSON nor an event stream"), pool.Service)
	}
	return a.edited(body, x.edited.answers.Whole(body))
}

// hold reads an answer up to its end, or to one byte over the limit. Room for it is taken
// where request bodies are, but not of the workspace's share: what was asked for is paid
// for.
func (a *answer) hold(limit int64) ([]byte, *refusal) {
	x, size := a.x, limit
	x.bodySent()
	if n := a.res.ContentLength; 0 <= n && n < size {
		size = n
	}
	ctx, cancel := context.WithTimeout(x.ctx, bodyQueue)
	defer cancel()
	if r := x.takeRoom(ctx, size); r != nil {
		r.reason = pool.Cancelled
		return nil, r
	}
	x.held = size
	body, err := readAll(io.LimitReader(a.res.Body, limit+1), func() { a.watch.enter(x.p.cfg.Timers.Idle, &errIdle) })
	if err != nil {
		return nil, x.upstreamFailed(a.ctx, err)
	}
	x.held = min(size, int64(len(body)))
	x.p.bodies.Release(size - x.held)
	return body, nil
}

// edited is an answer whose body is here, with edits made.
func (a *answer) edited(body []byte, edits transform.Edits) (*answer, *refusal) {
	a.head = body
	if len(edits) == 0 {
		return a, nil
	}
	a.head = edits.Apply(body)
	if a.res.Header.Get("Content-Length") != "" {
		a.res.Header.Set("Content-Length", strconv.Itoa(len(a.head)))
	}
	return a, nil
}

// fail throws the answer away and refuses the request, for a reason that the pool is told.
func (a *answer) fail(r *refusal, reason pool.Reason) (*answer, *refusal) {
	a.discard()
	r.reason = reason
	return a, r
}

// readAll is io.ReadAll that says when it reads.
func readAll(r io.Reader, reading func()) ([]byte, error) {
	var b bytes.Buffer
	for {
		reading()
		_, err := io.CopyN(&b, r, 64<<10)
		if errors.Is(err, io.EOF) {
			return b.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (x *exchange) unusable(how string) *refusal {
	r := refused(http.StatusBadGateway, "provider_answer_unusable", fmt.Sprintf("the provider %s answered %s", x.provider, how), nil)
	r.outcome = outcomeServerError
	return r
}

func isJSON(res *http.Response) bool {
	kind := strings.ToLower(mediaType(res))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// counter reads the tokens that an answer counts which is not streamed, wherever in it that
// stands.
type counter struct {
	a      *answer // nil: nothing is counted
	filter *scan.PathFilter
}

func newCounter(a *answer) counter {
	if a.res.StatusCode != http.StatusOK || !a.x.tally.Counts() || !isJSON(a.res) {
		return counter{}
	}
	return counter{a, scan.NewPathFilter(append(a.x.tally.Paths(), []string{"id"})...)}
}

func (c *counter) add(b []byte) {
	if c.a != nil {
		c.filter.Write(b)
	}
}

// done is for an answer that came whole.
func (c *counter) done() {
	if c.a == nil {
		return
	}
	if kept, ok := c.filter.Kept(); ok && !c.known(kept) {
		c.a.x.tally.Read(kept)
	}
}

// known reports whether an answer was there before, and counted: the path asks for it by
// its id.
func (c *counter) known(kept []byte) bool {
	id := scan.TopString(kept, "id")
	return c.a.route.Stream == nil && len(id) > 0 && strings.Contains(c.a.x.path+"/", "/"+string(id)+"/")
}
