package proxy

import (
	"cmp"
	"encoding/json"
	"strconv"

	"signalbox.dev/services/credential-broker/internal/scan"
)

const (
	maxChoices = 256 // of one answer that are told apart
	maxIndex   = 20  // digits of a choice's index
)

// choices tracks which choices of a chat answer have finished, for a request that asks for
// more than one. A nil *choices is for a request that asks for one.
type choices struct {
	want     int
	finished map[string]bool // by index, as written
}

func newChoices(want int) *choices {
	if want <= 1 {
		return nil
	}
	return &choices{want: want, finished: map[string]bool{}}
}

// see records the choices that finish in a chunk.
func (c *choices) see(data []byte) {
	var ch chunk
	if c == nil || json.Unmarshal(data, &ch) != nil {
		return
	}
	for _, choice := range ch.Choices {
		index := cmp.Or(string(choice.Index), "0")
		if choice.FinishReason != "" && len(index) <= maxIndex && len(c.finished) < maxChoices {
			c.finished[index] = true
		}
	}
}

// whole reports whether as many choices have finished as were asked for.
func (c *choices) whole() bool { return c == nil || len(c.finished) >= c.want }

// wantedChoices returns how many choices a request asks for, at most maxChoices+1: n for
// each prompt.
func wantedChoices(n, prompt []byte) int {
	each, err := strconv.Atoi(string(n))
	if err != nil {
		each = 1
	}
	return min(max(min(each, maxChoices+1), 1)*prompts(prompt), maxChoices+1)
}

// prompts returns the number of prompts in a list, at most maxChoices+1. A list of numbers
// is a single prompt of tokens.
func prompts(list []byte) int {
	n := 0
	s := scan.New(list)
	for range s.Elements() {
		if k := s.Kind(); k != '"' && k != '[' {
			return 1
		}
		if n++; n > maxChoices {
			return n
		}
	}
	if s.Bad() {
		return 1
	}
	return max(n, 1)
}
