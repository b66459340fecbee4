package proxy

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/scan"
)

// verdict is what one event means for the stream. The zero verdict is an event that says
// nothing yet: a comment, a ping, a preamble.
type verdict uint8

const (
	meaningful verdict = 1 << iota
	failure            // the provider reports an error
	finished           // a clean end may follow
	terminal           // the answer is whole

	cleanEnd = meaningful | finished | terminal
)

// judge returns what an event means. Before the gate has opened (early), chat chunks are
// examined for content. Without rules every event is meaningful and may be the last.
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
	name := ev.typeName()
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

// typeName returns the name of a typed event: the event line's, else the data's "type".
func (e *event) typeName() []byte {
	if len(e.name) > 0 {
		return e.name
	}
	return scan.TopString(e.data, "type")
}

func contains(list []string, name []byte) bool {
	for _, s := range list { //nolint:modernize // slices.Contains would allocate a string for a long name
		if s == string(name) {
			return true
		}
	}
	return false
}

// chunk is what the proxy reads of a chat completion chunk.
type chunk struct {
	Error   json.RawMessage `json:"error"`
	Choices []struct {
		Delta        map[string]json.RawMessage `json:"delta"`
		Text         string                     `json:"text"`
		FinishReason string                     `json:"finish_reason"` // some providers write "" before the end
	} `json:"choices"`
}

// judgeChunk reads a chat completion chunk. Anything else is meaningful: the caller has to
// see it.
func judgeChunk(data []byte) verdict {
	if isDone(data) {
		return cleanEnd
	}
	var c chunk
	if json.Unmarshal(data, &c) != nil {
		return meaningful
	}
	var v verdict
	if len(c.Error) > 0 && !isEmpty(c.Error) {
		v |= meaningful | failure
	}
	for _, choice := range c.Choices {
		if choice.FinishReason != "" {
			v |= meaningful | finished
		}
		if choice.Text != "" {
			v |= meaningful
		}
		for name, value := range choice.Delta {
			if name != "role" && !isEmpty(value) {
				v |= meaningful
			}
		}
	}
	return v
}

func isEmpty(value []byte) bool {
	switch string(value) {
	case "null", `""`, "[]", "{}":
		return true
	}
	return false
}

func isDone(data []byte) bool {
	return len(data) < 32 && string(bytes.TrimSpace(data)) == "[DONE]"
}

// skimChunk is judgeChunk after the gate has opened, when only ends and errors matter: it
// parses only chunks that may hold one. A quote inside a JSON string is written \", so that
// the bytes "finish_reason": are a member and never model text.
func skimChunk(data []byte) verdict {
	if isDone(data) {
		return cleanEnd
	}
	if hasValue(data, []byte(`"error"`)) || hasValue(data, []byte(`"finish_reason"`)) {
		return judgeChunk(data) | meaningful
	}
	return meaningful
}

// hasValue reports whether a member with that quoted name has a value other than null and
// "".
func hasValue(data, name []byte) bool {
	for {
		_, rest, found := bytes.Cut(data, name)
		if !found {
			return false
		}
		data = rest
		rest, isName := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		if !isName {
			continue
		}
		rest = bytes.TrimLeft(rest, " \t\r\n")
		if !bytes.HasPrefix(rest, []byte("null")) && !bytes.HasPrefix(rest, []byte(`""`)) {
			return true
		}
	}
}
