// Package play plays an answer: it goes through the steps, waits where they say so, and encodes
// each event with the dialect's Encoder. It runs on the goroutine of the request and starts no
// other. The request's context ends it at once.
package play

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/journal"
	"signalbox.dev/services/simulator/internal/wire"
)

// Encoder encodes one answer in a dialect. The methods with b append complete events to it. An
// encoder belongs to one answer and may keep state.
type Encoder interface {
	// Header sets the header of a stream.
	Header(h http.Header)
	// Begin appends the events before the first block.
	Begin(b []byte) []byte
	// Start opens block i.
	Start(b []byte, i int, blk *chat.Block) []byte
	// Piece appends the nth delta of block i.
	Piece(b []byte, i int, blk *chat.Block, n int) []byte
	// Stop closes block i.
	Stop(b []byte, i int, blk *chat.Block) []byte
	// Finish appends the reason to stop and the usage.
	Finish(b []byte) []byte
	// Last appends the event that completes the answer.
	Last(b []byte) []byte
	// Event appends an event of the script.
	Event(b []byte, e *chat.Event) []byte
	// Failure appends an error in the middle of a stream.
	Failure(b []byte, f *chat.Fault) []byte
	// Whole returns the answer to a request that does not stream.
	Whole() []byte
	// Refuse writes an error response.
	Refuse(w http.ResponseWriter, f *chat.Fault) (status int, n int64)
}

// Player plays one answer.
type Player struct {
	W      *wire.Writer
	Out    http.ResponseWriter
	Enc    Encoder
	Answer *chat.Answer
	Pace   float64 // factor on every wait that is not a fault

	sent   bool // the header was sent
	begun  bool // the events before the first block were written
	blocks int
}

// Outcome is how an answer ended.
type Outcome struct {
	Ended  string // as in journal.Entry
	Status int
	Bytes  int64
}

// Stream plays the answer as a stream of events.
func (p *Player) Stream(ctx context.Context) Outcome {
	for _, s := range p.Answer.Steps {
		if s.Fault != nil {
			if how, ended := p.fault(ctx, s.Fault); ended {
				return how
			}
			continue
		}
		if err := p.step(ctx, s); err != nil {
			return p.outcome(journal.ClientLeft)
		}
	}
	if err := p.open(ctx); err != nil {
		return p.outcome(journal.ClientLeft)
	}
	p.W.B = p.Enc.Last(p.Enc.Finish(p.W.B))
	if err := p.W.Flush(ctx); err != nil {
		return p.outcome(journal.ClientLeft)
	}
	return p.outcome(journal.Complete)
}

func (p *Player) outcome(how string) Outcome {
	status, n := p.W.Sent()
	return Outcome{Ended: how, Status: status, Bytes: n}
}

// open sends the header and the events before the first block, once.
func (p *Player) open(ctx context.Context) error {
	p.header()
	if p.begun {
		return nil
	}
	p.begun = true
	p.W.B = p.Enc.Begin(p.W.B)
	return p.W.Mark(ctx)
}

// header sends the header of a stream, once.
func (p *Player) header() {
	if !p.sent {
		p.sent = true
		p.Enc.Header(p.W.Header())
		p.W.Status(http.StatusOK)
	}
}

func (p *Player) step(ctx context.Context, s chat.Step) error {
	if err := p.open(ctx); err != nil {
		return err
	}
	switch {
	case s.Block != nil:
		return p.block(ctx, s.Block)
	case s.Together != nil:
		return p.interleave(ctx, s.Together)
	case s.Event != nil:
		p.W.B = p.Enc.Event(p.W.B, s.Event)
		return p.W.Mark(ctx)
	default:
		return p.W.Sleep(ctx, p.scaled(s.Wait))
	}
}

func (p *Player) block(ctx context.Context, blk *chat.Block) error {
	i := p.blocks
	p.blocks++
	p.W.B = p.Enc.Start(p.W.B, i, blk)
	if err := p.W.Mark(ctx); err != nil {
		return err
	}
	delay := p.scaled(blk.Delay)
	for n := range Pieces(blk) {
		if err := p.W.Sleep(ctx, delay); err != nil {
			return err
		}
		p.W.B = p.Enc.Piece(p.W.B, i, blk, n)
		if err := p.W.Mark(ctx); err != nil {
			return err
		}
	}
	p.W.B = p.Enc.Stop(p.W.B, i, blk)
	return p.W.Mark(ctx)
}

// interleave opens all blocks, writes their deltas in turn, and closes them.
func (p *Player) interleave(ctx context.Context, blocks []*chat.Block) error {
	from := p.blocks
	p.blocks += len(blocks)
	longest := 0
	for i, blk := range blocks {
		longest = max(longest, Pieces(blk))
		p.W.B = p.Enc.Start(p.W.B, from+i, blk)
		if err := p.W.Mark(ctx); err != nil {
			return err
		}
	}
	for n := range longest {
		for i, blk := range blocks {
			if n >= Pieces(blk) {
				continue
			}
			if err := p.W.Sleep(ctx, p.scaled(blk.Delay)); err != nil {
				return err
			}
			p.W.B = p.Enc.Piece(p.W.B, from+i, blk, n)
			if err := p.W.Mark(ctx); err != nil {
				return err
			}
		}
	}
	for i, blk := range blocks {
		p.W.B = p.Enc.Stop(p.W.B, from+i, blk)
		if err := p.W.Mark(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Pieces returns how many deltas a block has.
func Pieces(blk *chat.Block) int {
	if blk.Kind == chat.RawBlock {
		return len(blk.Raw.Deltas)
	}
	return len(blk.Pieces)
}

// fault plays a fault and reports whether it ended the answer. If nothing was sent yet, a
// fault inside the stream comes right after the header.
func (p *Player) fault(ctx context.Context, f *chat.Fault) (Outcome, bool) {
	if f.InStream || f.Kind == chat.Cut {
		p.header()
		if p.W.Flush(ctx) != nil {
			return p.outcome(journal.ClientLeft), true
		}
	}
	if f.Late || f.Torn {
		if p.open(ctx) != nil {
			return p.outcome(journal.ClientLeft), true
		}
		end := p.Enc.Finish(nil)
		if f.Torn {
			event, _, _ := bytes.Cut(end, []byte("\n\n"))
			end = event[:len(event)/3] // too little for the reason to stop
		}
		p.W.B = append(p.W.B, end...)
	}
	if f.Answers() {
		if !p.sent {
			status, n := p.Enc.Refuse(p.Out, f)
			return Outcome{Ended: journal.Refused, Status: status, Bytes: n}, true
		}
		p.W.B = p.Enc.Failure(p.W.B, f)
	}
	if f.Kind == chat.Stall {
		wait := func() error { return p.W.Sleep(ctx, f.For) }
		if f.Ends() {
			wait = func() error { return p.W.Hold(ctx) }
		}
		err := wait()
		return p.outcome(journal.ClientLeft), err != nil
	}
	if len(p.W.B) > 0 && p.W.Flush(ctx) != nil {
		return p.outcome(journal.ClientLeft), true
	}
	switch f.Kind {
	case chat.Reset:
		defer p.W.Reset()
	case chat.Drop:
		defer p.W.Drop()
	default:
	}
	return p.outcome(journal.Broken), true
}

// Whole plays the answer as one JSON document. A connection failure happens in its middle.
func (p *Player) Whole(ctx context.Context) Outcome {
	for _, s := range p.Answer.Steps {
		if f := s.Fault; f != nil {
			switch {
			case f.Answers():
				status, n := p.Enc.Refuse(p.Out, f)
				return Outcome{Ended: journal.Refused, Status: status, Bytes: n}
			case f.Kind == chat.Stall:
				if f.Ends() && p.W.Hold(ctx) != nil || p.W.Sleep(ctx, f.For) != nil {
					return p.outcome(journal.ClientLeft)
				}
			default:
				return p.half(ctx, f)
			}
			continue
		}
		if err := p.W.Sleep(ctx, p.scaled(s.Wait+streaming(s))); err != nil {
			return p.outcome(journal.ClientLeft)
		}
	}
	body := p.Enc.Whole()
	p.Enc.Header(p.W.Header())
	p.W.Header().Set("Content-Type", "application/json")
	p.W.Header().Set("Content-Length", strconv.Itoa(len(body)))
	p.W.Status(http.StatusOK)
	p.W.B = append(p.W.B, body...)
	if err := p.W.Flush(ctx); err != nil {
		return p.outcome(journal.ClientLeft)
	}
	return p.outcome(journal.Complete)
}

// half writes the first half of the document, then plays the connection failure.
func (p *Player) half(ctx context.Context, f *chat.Fault) Outcome {
	if f.Kind == chat.Cut || f.InStream {
		body := p.Enc.Whole()
		p.Enc.Header(p.W.Header())
		p.W.Header().Set("Content-Type", "application/json")
		p.W.Status(http.StatusOK)
		p.W.B = append(p.W.B, body[:len(body)/2]...)
		if err := p.W.Flush(ctx); err != nil {
			return p.outcome(journal.ClientLeft)
		}
	}
	switch f.Kind {
	case chat.Reset:
		defer p.W.Reset()
	case chat.Drop:
		defer p.W.Drop()
	default:
	}
	return p.outcome(journal.Broken)
}

// streaming returns the time that the deltas of a step would take.
func streaming(s chat.Step) time.Duration {
	blocks := s.Together
	if s.Block != nil {
		blocks = []*chat.Block{s.Block}
	}
	var d time.Duration
	for _, blk := range blocks {
		d += blk.Delay * time.Duration(Pieces(blk))
	}
	return d
}

func (p *Player) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.Pace)
}
