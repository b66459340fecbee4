package proxy

import (
	"context"
	"errors"
	"io"
	"maps"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// notReturned are headers of an answer that speak of the provider's host and would be taken to
// speak of ours.
var notReturned = []string{"Set-Cookie", "Alt-Svc", "Strict-Transport-Security", errorHeader}

// begin writes status and headers to the caller.
func (a *answer) begin() {
	x := a.x
	h := x.w.Header()
	secret := x.account.Secret.Reveal()
	maps.Copy(h, forwardable(a.res.Header, notReturned, func(v string) bool { return quotes(v, secret) }))
	for _, name := range links {
		for i, v := range h[name] {
			h[name][i] = a.places().header(name, v)
		}
	}
	if a.relay != nil {
		h.Del("Content-Length") // an error event may have to follow
	}
	for _, name := range [...]string{"Date", "Content-Type"} {
		if _, ok := h[name]; !ok {
			h[name] = nil // net/http would add one that the provider did not send
		}
	}
	x.status = a.res.StatusCode
	x.writes.extend(x.p.cfg.Timers.Write)
	x.w.WriteHeader(a.res.StatusCode)
}

// deliver forwards the answer to its end.
func (x *exchange) deliver(a *answer) {
	defer a.discard()
	x.bodySent()
	if a.relay != nil {
		open := x.p.metrics.open.WithLabelValues(x.label)
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
		a.reason = x.brokenReason(a.reason)
	}
	x.report(a.reason, false, a)
}

// copyPlain copies a body that is not an event stream, without the credential. Every piece is
// flushed as it comes, except for last bytes that may begin the credential.
func (a *answer) copyPlain() error {
	x := a.x
	pooled := x.p.buffers.Get().(*[]byte)
	defer x.p.buffers.Put(pooled)
	b := *pooled
	if n := 2 * a.echoes.longest; n > len(b) { // what is held leaves room to read
		b = make([]byte, n)
	}
	usage := a.usageFilter()
	usage.Write(a.head)
	held, err := a.show(a.head, b)
	if err != nil {
		return err
	}
	for {
		a.watch.start(&x.p.waits.idle)
		n, err := a.res.Body.Read(b[held:])
		x.bodySent()
		a.watch.pause()
		if n > 0 {
			usage.Write(b[held : held+n])
			var werr error
			if held, werr = a.show(b[:held+n], b); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			a.readUsage(usage)
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

// show writes a piece of a body, except for an end that may begin the credential: that is
// moved to the beginning of buf, and show returns its length.
func (a *answer) show(piece, buf []byte) (held int, err error) {
	a.echoes.hide(piece)
	n := len(piece) - a.echoes.held(piece)
	if n > 0 {
		err = a.x.write(piece[:n])
	}
	return copy(buf, piece[n:]), err
}

// brokenReason returns what the pool is told about an answer that broke off after it had begun
// for this reason.
func (x *exchange) brokenReason(reason pool.Reason) pool.Reason {
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
