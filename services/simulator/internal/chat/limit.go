package chat

import (
	"strings"
	"unicode/utf8"
)

// Limit cuts an answer to what the request allows: at a stop sequence in its text, at the
// limit of output tokens, and after the first tool call if parallel calls are forbidden. It
// then sets the reason to stop.
func Limit(a *Answer, r *Request) {
	c := cutter{stops: r.Stops, left: -1}
	if r.MaxTokens > 0 {
		c.left = r.MaxTokens * 4
	}
	kept := a.Steps[:0:0]
	calls := 0
	for _, s := range a.Steps {
		if s.Block != nil && s.Block.Kind == Call {
			calls++
			if r.SingleCall && calls > 1 {
				continue
			}
		}
		if c.left == 0 && s.Block != nil && len(s.Block.Pieces) > 0 {
			a.Stop, a.StopSequence = MaxTokens, ""
			break
		}
		kept = append(kept, c.step(s))
		if c.why != "" {
			a.Stop, a.StopSequence = c.why, c.sequence
			break
		}
	}
	a.Steps = kept
	if a.Stop == "" {
		a.Stop = EndTurn
		for _, b := range a.Blocks() {
			if b.Kind == Call {
				a.Stop = ToolUse
			}
		}
	}
}

type cutter struct {
	stops    []string
	left     int // bytes; -1: no limit
	why      Stop
	sequence string
}

func (c *cutter) step(s Step) Step {
	switch {
	case s.Block != nil:
		b := c.block(*s.Block)
		s.Block = &b
	case s.Together != nil:
		all := make([]*Block, 0, len(s.Together))
		for _, p := range s.Together {
			b := c.block(*p)
			all = append(all, &b)
			if c.why != "" {
				break
			}
		}
		s.Together = all
	}
	return s
}

func (c *cutter) block(b Block) Block {
	if b.Kind == Text {
		b.Pieces = c.atStop(b.Pieces)
	}
	if c.left < 0 {
		return b
	}
	for i, p := range b.Pieces {
		if len(p) <= c.left {
			c.left -= len(p)
			continue
		}
		n := c.left
		for n > 0 && !utf8.RuneStart(p[n]) {
			n--
		}
		b.Pieces = cut(b.Pieces, i, n)
		c.why, c.sequence, c.left = MaxTokens, "", 0
		break
	}
	return b
}

func (c *cutter) atStop(pieces []string) []string {
	if len(c.stops) == 0 {
		return pieces
	}
	text := strings.Join(pieces, "")
	at, which := -1, ""
	for _, s := range c.stops {
		if i := strings.Index(text, s); s != "" && i >= 0 && (at < 0 || i < at) {
			at, which = i, s
		}
	}
	if at < 0 {
		return pieces
	}
	c.why, c.sequence = StopSequence, which
	for i, p := range pieces {
		if len(p) >= at {
			return cut(pieces, i, at)
		}
		at -= len(p)
	}
	return pieces
}

// cut keeps the first i pieces and n bytes of the next.
func cut(pieces []string, i, n int) []string {
	if n == 0 {
		return pieces[:i]
	}
	return append(pieces[:i:i], pieces[i][:n])
}
