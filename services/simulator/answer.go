package simulator

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strconv"

	"signalbox.dev/services/simulator/internal/anthropic"
	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/journal"
	"signalbox.dev/services/simulator/internal/play"
	"signalbox.dev/services/simulator/internal/wire"
)

type encoder = play.Encoder

// api has what differs between the providers' APIs.
type api struct {
	dialect    chat.Dialect
	credential func(http.Header) (string, *chat.Fault)
	check      func(http.Header) *chat.Fault
	decode     func([]byte) (*chat.Request, *chat.Fault)
	account    func(scope string, prompt []chat.Segment) chat.Usage
	encoder    func(*chat.Answer, *chat.Request, chat.Seed) encoder
	requestID  func(chat.Seed) string
	header     func(h http.Header, requestID string)
	refuse     func(w http.ResponseWriter, f *chat.Fault, requestID string) (status int, n int64)
	unknown    func(model string) *chat.Fault
	ping       string
	comment    string
	list       func(ids []string) ([]byte, error)
	one        func(id string) ([]byte, error)
}

// call is one active request to a provider.
type call struct {
	s    *Simulator
	d    *api
	w    http.ResponseWriter
	r    *http.Request
	seed chat.Seed
	id   string
	note *journal.Exchange
}

// answer serves the endpoint for model calls.
func (s *Simulator) answer(d *api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, leave, ok := s.enter(r.Context())
		defer leave()
		if !ok {
			d.refuse(w, &chat.Fault{Kind: chat.Overloaded}, "")
			return
		}
		body, fault := s.body(w, r)
		c := s.newCall(d, w, r, body)
		out := play.Outcome{Ended: journal.Broken} // stays if net/http aborts by a panic
		// This records the moment when a client leaves, before a write fails.
		stop := context.AfterFunc(r.Context(), func() { c.note.End(journal.ClientLeft, 0, 0) })
		defer func() {
			stop()
			c.note.End(out.Ended, out.Status, out.Bytes)
		}()
		if fault != nil {
			out = c.refuse(fault)
			return
		}
		out = c.play(ctx, body)
	}
}

func (s *Simulator) newCall(d *api, w http.ResponseWriter, r *http.Request, body []byte) *call {
	content := sha256.New()
	content.Write([]byte(r.URL.Path + "\x00" + r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + "\x00"))
	content.Write(body)
	sum := [sha256.Size]byte(content.Sum(nil))
	before, _ := s.seen.Add(sum, 0)
	c := &call{s: s, d: d, w: w, r: r, seed: chat.NewSeed(sum, before)}
	c.id = d.requestID(c.seed)
	c.note = s.journal.Begin(r, c.id)
	c.note.Body(body)
	c.note.Asked(string(d.dialect), "", "", "", false)
	d.header(w.Header(), c.id)
	return c
}

// body reads the request's body.
func (s *Simulator) body(w http.ResponseWriter, r *http.Request) ([]byte, *chat.Fault) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, &chat.Fault{Kind: chat.TooLarge, Message: "The request body is longer than " + strconv.FormatInt(s.cfg.MaxBody, 10) + " bytes."}
	}
	if err != nil {
		return nil, &chat.Fault{Kind: chat.Invalid, Message: "The request body could not be read."}
	}
	return body, nil
}

func (c *call) refuse(f *chat.Fault) play.Outcome {
	status, n := c.d.refuse(c.w, f, c.id)
	return play.Outcome{Ended: journal.Refused, Status: status, Bytes: n}
}

// request authenticates and decodes the request.
func (c *call) request(body []byte) (*chat.Request, *chat.Fault) {
	key, f := c.d.credential(c.r.Header)
	if f != nil {
		return nil, f
	}
	if f := c.d.check(c.r.Header); f != nil {
		return nil, f
	}
	req, f := c.d.decode(body)
	if f != nil {
		return nil, f
	}
	req.Key = key
	return req, nil
}

// play finds the script, gets its answer and plays it.
func (c *call) play(ctx context.Context, body []byte) play.Outcome {
	req, f := c.request(body)
	if f != nil {
		return c.refuse(f)
	}
	sc := c.s.scripts.Find(req.Model)
	if sc == nil {
		c.note.Asked(string(c.d.dialect), req.Model, "", "", req.Stream)
		return c.refuse(c.d.unknown(req.Model))
	}
	a, err := sc.Answer(req, c.s.faults)
	if err != nil {
		c.note.Asked(string(c.d.dialect), req.Model, sc.Name, "", req.Stream)
		c.s.log.WarnContext(ctx, "script gave no answer", "script", sc.Name, "error", err)
		return c.refuse(&chat.Fault{Kind: chat.ServerError, Message: "simulated provider: " + err.Error()})
	}
	c.note.Asked(string(c.d.dialect), req.Model, sc.Name, a.Rule, req.Stream)
	chat.Limit(a, req)
	a.Usage = c.d.account(req.Key+"\x00"+req.Model, req.Prompt)
	a.Count()
	if !req.Stream {
		a.Shape.CRLF = false // JSON has no event lines
	}
	p := play.Player{
		W: wire.New(c.w, a.Shape, c.d.comment, c.d.ping), Out: c.w, Enc: c.d.encoder(a, req, c.seed), Answer: a, Pace: c.s.cfg.Pace,
	}
	out := p.Whole
	if req.Stream {
		out = p.Stream
	}
	how := out(ctx)
	if how.Ended == journal.ClientLeft && errors.Is(context.Cause(ctx), errClosing) {
		how.Ended = journal.Shutdown
		defer p.W.Drop() // a clean end would look like a complete answer
	}
	return how
}

// countTokens serves POST /v1/messages/count_tokens.
func (s *Simulator) countTokens(d *api) http.HandlerFunc {
	counting := *d
	counting.decode = func(b []byte) (*chat.Request, *chat.Fault) { return anthropic.Decode(b, true) }
	return func(w http.ResponseWriter, r *http.Request) {
		body, fault := s.body(w, r)
		c := s.newCall(&counting, w, r, body)
		out := play.Outcome{Ended: journal.Complete, Status: http.StatusOK}
		defer func() { c.note.End(out.Ended, out.Status, out.Bytes) }()
		if fault != nil {
			out = c.refuse(fault)
			return
		}
		req, fault := c.request(body)
		if fault != nil {
			out = c.refuse(fault)
			return
		}
		total := 0
		for _, seg := range req.Prompt {
			total += seg.Tokens
		}
		answer := append(strconv.AppendInt([]byte(`{"input_tokens":`), int64(total), 10), '}')
		w.Header().Set("Content-Type", "application/json")
		n, _ := w.Write(answer) // the client may have left
		out.Bytes = int64(n)
	}
}
