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
		if len(secret) >= 8 && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, secret) }) {
			continue
		}
		h[name] = values
	}
	for _, line := range a.res.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	if a.relay != nil {
		h.Del("Content-Length") // an error event may have to follow
	}
	if _, ok := h["Date"]; !ok {
		h["Date"] = nil // the provider sent none, so we send none
	}
	x.status = a.res.StatusCode
	x.extendDeadline()
	x.w.WriteHeader(a.res.StatusCode)
}

// deliver shows the answer to the caller, to its end.
func (x *exchange) deliver(a *answer) {
	defer a.discard()
	x.releaseBody()
	if a.reason == pool.OK {
		x.p.cfg.Pool.Began(x.account)
	}
	if a.relay != nil {
		open := x.p.metrics.of(x.label).open
		open.Inc()
		defer open.Dec()
		a.relay.run()
		return
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
	}
	x.report(a.reason, a.res)
}

// copyPlain copies a body that is no event stream. One of unknown length is
// flushed as it comes.
func (a *answer) copyPlain() error {
	x := a.x
	if len(a.head) > 0 {
		if err := x.write(a.head); err != nil {
			return err
		}
	}
	b := x.p.buffers.Get().(*[]byte)
	defer x.p.buffers.Put(b)
	count := newCounter(a)
	count.add(a.head)
	for {
		a.watch.enter(x.p.cfg.Timers.Idle, &errIdle)
		n, err := a.res.Body.Read(*b)
		a.watch.pause()
		if n > 0 {
			count.add((*b)[:n])
			if werr := x.write((*b)[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			count.done()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// breakOff marks an answer that has begun and must not end cleanly.
func (x *exchange) breakOff(err error) {
	x.broken, x.cause, x.outcome = true, err, outcomeBroken
	if x.lost || x.r.Context().Err() != nil {
		x.outcome = outcomeCancelled
	}
}
