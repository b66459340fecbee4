package proxy

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/credential-broker/internal/profile"
)

// verdict is what one event means for the stream. The zero verdict is an event
// that says nothing yet: a comment, a ping, a preamble.
type verdict uint8

const (
	meaningful verdict = 1 << iota
	failure            // the provider reports an error
	finished           // a clean end may follow
	terminal           // the answer is whole
)

// judge returns what an event means. Before the gate has opened, early is true
// and chat chunks are looked at more closely. Without rules every event means
// something and no end is asked for.
func judge(rules *profile.Stream, ev event, early bool) verdict {
	switch {
	case !ev.hasData:
		return 0
	case rules == nil:
		return meaningful | finished
	case rules.Events == profile.Typed:
		return judgeTyped(rules, ev)
	case early:
		return judgeChunk(ev.data)
	}
	return skimChunk(ev.data)
}

func judgeTyped(rules *profile.Stream, ev event) verdict {
	name := ev.name
	if len(name) == 0 {
		name = topString(ev.data, "type")
	}
	v := meaningful
	if contains(rules.Preamble, name) {
		v = 0
	}
	if contains(rules.Error, name) {
		v |= failure
	}
	if contains(rules.Terminal, name) {
		v |= terminal | finished
	}
	return v
}

func contains(list []string, name []byte) bool {
	for _, s := range list { //nolint:modernize // slices.Contains would make a string of every long name
		if s == string(name) {
			return true
		}
	}
	return false
}

// chunk is what matters of a chat completion chunk.
type chunk struct {
	Error   json.RawMessage `json:"error"`
	Choices []struct {
		Delta        map[string]json.RawMessage `json:"delta"`
		Text         string                     `json:"text"`
		FinishReason *string                    `json:"finish_reason"`
	} `json:"choices"`
}

// judgeChunk reads a chat completion chunk. What does not parse is meaningful:
// the reader on the other side shall see it.
func judgeChunk(data []byte) verdict {
	if isDone(data) {
		return meaningful | terminal | finished
	}
	var c chunk
	if json.Unmarshal(data, &c) != nil {
		return meaningful
	}
	var v verdict
	if isSet(c.Error) {
		v |= meaningful | failure
	}
	for _, choice := range c.Choices {
		if choice.FinishReason != nil {
			v |= meaningful | finished
		}
		if choice.Text != "" {
			v |= meaningful
		}
		for name, raw := range choice.Delta {
			if name != "role" && isSet(raw) {
				v |= meaningful
			}
		}
	}
	return v
}

// isSet reports whether a JSON value says anything.
func isSet(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

func isDone(data []byte) bool {
	return len(data) < 32 && string(bytes.TrimSpace(data)) == "[DONE]"
}

// skimChunk is judgeChunk after the gate, when only ends and errors matter: it
// parses only what looks like one. A quote inside a JSON string is written \", so
// that "finish_reason": in these bytes is a member and never model text.
func skimChunk(data []byte) verdict {
	if isDone(data) {
		return meaningful | terminal | finished
	}
	if bytes.Contains(data, []byte(`"error"`)) || hasValue(data, []byte(`"finish_reason"`)) {
		return judgeChunk(data) | meaningful
	}
	return meaningful
}

// hasValue reports whether a member of that quoted name has another value than null.
func hasValue(data, name []byte) bool {
	for {
		i := bytes.Index(data, name)
		if i < 0 {
			return false
		}
		data = data[i+len(name):]
		rest := bytes.TrimLeft(data, " \t\r\n")
		if len(rest) == 0 || rest[0] != ':' {
			continue
		}
		rest = bytes.TrimLeft(rest[1:], " \t\r\n")
		if len(rest) == 0 || rest[0] != 'n' {
			return true
		}
	}
}

// topString returns the string that a member of the outermost object has, as it
// is written, or nothing. It reads no further than needed and tolerates data that
// is cut short behind it.
func topString(data []byte, member string) []byte {
	depth, key := 0, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			depth++
			key = depth == 1 && data[i] == '{'
		case '}', ']':
			depth--
		case ',':
			key = depth == 1
		case ':':
			key = false
		case '"':
			end := stringEnd(data, i)
			if end < 0 {
				return nil
			}
			if key && string(data[i+1:end]) == member {
				return stringValue(data[end+1:])
			}
			i = end
		}
	}
	return nil
}

// stringEnd returns the index of the quote that closes the string opened at i.
func stringEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// stringValue returns the string behind a colon.
func stringValue(data []byte) []byte {
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 || data[0] != ':' {
		return nil
	}
	data = bytes.TrimLeft(data[1:], " \t\r\n")
	if len(data) == 0 || data[0] != '"' {
		return nil
	}
	end := stringEnd(data, 0)
	if end < 0 {
		return nil
	}
	return data[1:end]
}
