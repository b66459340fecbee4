package proxy

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// withheld are headers of an answer that end at the proxy: the hop's own, and
// those that speak of the provider's host and would be taken to speak of ours.
var withheld = [...]string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Set-Cookie", "Alt-Svc", "Strict-Transport-Security",
}

// begin tells the caller status and headers.
func (a *answer) begin() {
	x := a.x
	h := x.w.Header()
	secret := x.account.Secret.Reveal()
	for name, values := range a.res.Header {
		if slices.Contains(withheld[:], name) {
			continue
		}
		if slices.ContainsFunc(values, func(v string) bool { return quotes(v, secret) }) {
			continue
		}
		h[name] = values
	}
	for _, name := range links {
		if values := h[name]; len(values) > 0 {
			p := a.places()
			h[name] = make([]string, len(values))
			for i, v := range values {
				h[name][i] = p.header(name, v)
			}
		}
	}
	for _, line := range a.res.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	if a.relay != nil {
		h.Del("Content-Length") // an error event may have to follow
	}
	for _, name := range [...]string{"Date", "Content-Type"} {
		if _, ok := h[name]; !ok {
			h[name] = nil // the provider sent none, so we send none
		}
	}
	x.status = a.res.StatusCode
	x.extendDeadline()
	x.w.WriteHeader(a.res.StatusCode)
}

// deliver shows the answer to the caller, to its end.
func (x *exchange) deliver(a *answer) {
	defer a.discard()
	x.bodySent()
	if a.relay != nil {
		open := x.p.metrics.of(x.label).open
		open.Inc()
		defer open.Dec()
		a.relay.run()
		return
	}
	if a.reason == pool.OK {
		x.p.cfg.Pool.Began(x.account)
	}
	a.begin()
	switch {
	case a.res.StatusCode >= 500:
		x.outcome = outcomeServerError
	case a.res.StatusCode >= 400:
		x.outcome = outcomeClientError
	default:
		x.outcome = outcomeOK
	}
	if err := a.copyPlain(); err != nil {
		if cause := context.Cause(a.ctx); cause != nil {
			err = cause
		}
		x.breakOff(err)
		a.reason = x.broke(a.reason)
	}
	x.report(a.reason, false, a)
}

// copyPlain copies a body that is no event stream, without the credential. One of
// unknown length is flushed as it comes, but for last bytes with which the credential
// may begin.
func (a *answer) copyPlain() error {
	x := a.x
	pooled := x.p.buffers.Get().(*[]byte)
	defer x.p.buffers.Put(pooled)
	b := *pooled
	if n := 2 * a.echoes.longest; n > len(b) { // what is held leaves room to read
		b = make([]byte, n)
	}
	count := newCounter(a)
	count.add(a.head)
	held, err := a.show(a.head, b)
	if err != nil {
		return err
	}
	for {
		a.watch.enter(x.p.cfg.Timers.Idle, &errIdle)
		n, err := a.res.Body.Read(b[held:])
		x.bodySent()
		a.watch.pause()
		if n > 0 {
			count.add(b[held : held+n])
			var werr error
			if held, werr = a.show(b[:held+n], b); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			count.done()
			if held > 0 {
				return x.write(b[:held])
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// show writes a piece of a body and returns how much of its end it has put to the
// beginning of buf instead: what comes next may make a credential of it.
func (a *answer) show(piece, buf []byte) (held int, err error) {
	a.echoes.hide(piece)
	n := len(piece) - a.echoes.held(piece)
	if n > 0 {
		err = a.x.write(piece[:n])
	}
	return copy(buf, piece[n:]), err
}

// broke returns whose doing it was that an answer broke off which had begun well.
func (x *exchange) broke(reason pool.Reason) pool.Reason {
	switch {
	case reason != pool.OK:
		return reason
	case x.lost || x.slow || x.ctx.Err() != nil:
		return pool.Cancelled
	}
	return pool.Unreachable
}

// breakOff marks an answer that has begun and must not end cleanly.
func (x *exchange) breakOff(err error) {
	x.broken, x.cause, x.outcome = true, err, outcomeBroken
	if x.lost || x.r.Context().Err() != nil {
		x.outcome = outcomeCancelled
	}
}
