package proxy

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// maxChoices bounds the choices of one answer that are told apart.
const maxChoices = 256

// maxIndex bounds an index that is remembered, in digits.
const maxIndex = 20

// choices tells when all choices of a chat answer have finished, where the request may
// bring more than one. A nil *choices is of a request that cannot: the first to finish is
// the only one.
type choices struct {
	want     int
	finished map[string]bool // by index, as it is written
	lost     bool            // there were others than are told apart
}

// newChoices returns nil where a request can have but one choice.
func newChoices(body []byte) *choices {
	want := 1
	if n := topMember(body, "n"); len(n) > 0 {
		want = leadingNumber(n)
	}
	prompt := topMember(body, "prompt")
	if list := len(prompt) > 0 && prompt[0] == '['; want <= 1 && !list {
		return nil
	}
	return &choices{want: min(want*prompts(prompt), maxChoices+1), finished: map[string]bool{}}
}

// prompts returns how many prompts there are in a list of them, maxChoices+1 at most. One
// of numbers is a single prompt, of tokens.
func prompts(list []byte) int {
	s := scan.New(list)
	if !s.Array() {
		return 1
	}
	n := 0
	for n <= maxChoices && s.Element() {
		if k := s.Kind(); k != '"' && k != '[' {
			return 1
		}
		s.Skip()
		n++
	}
	if s.Bad() {
		return 1
	}
	return max(n, 1)
}

// topMember returns what follows the name and the colon of a member of the outermost
// object; nothing where there is none.
func topMember(body []byte, name string) []byte {
	if !bytes.Contains(body, []byte(`"`+name+`"`)) { // as mostly: most bodies are long
		return nil
	}
	rest := bytes.TrimLeft(behindTop(body, name), " \t\r\n")
	if len(rest) == 0 || rest[0] != ':' {
		return nil
	}
	return bytes.TrimLeft(rest[1:], " \t\r\n")
}

// leadingNumber returns the number that a text begins with, maxChoices+1 at most, and 1 for
// none.
func leadingNumber(text []byte) int {
	n, digits := 0, 0
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n, digits = min(10*n+int(c-'0'), maxChoices+1), digits+1
	}
	if digits == 0 {
		return 1
	}
	return n
}

// see notes what a chunk says.
func (c *choices) see(chunk []byte) {
	if c == nil || !json.Valid(chunk) {
		return
	}
	for name, value := range members(chunk) {
		if string(name) != "choices" {
			continue
		}
		for choice := range elements(value) {
			c.note(choice)
		}
	}
}

func (c *choices) note(choice []byte) {
	if choice[0] != '{' {
		return
	}
	index, finished := "0", false
	for name, value := range members(choice) {
		switch string(name) {
		case "index":
			index = string(value)
		case "finish_reason":
			finished = isSet(value)
		}
	}
	if _, known := c.finished[index]; !known && (len(c.finished) >= maxChoices || len(index) > maxIndex) {
		c.lost = true
		return
	}
	c.finished[index] = c.finished[index] || finished
}

// whole reports whether as many choices as were asked for have come, and all have
// finished.
func (c *choices) whole() bool {
	if c == nil {
		return true
	}
	for _, finished := range c.finished {
		if !finished {
			return false
		}
	}
	return !c.lost && len(c.finished) >= c.want
}
