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

// judgeChunk reads a chat completion chunk. What does not parse is meaningful:
// the reader on the other side shall see it.
func judgeChunk(data []byte) verdict {
	if isDone(data) {
		return meaningful | terminal | finished
	}
	if !json.Valid(data) {
		return meaningful
	}
	if top := data[space(data, 0)]; top != '{' && top != 'n' {
		return meaningful
	}
	var v verdict
	for name, value := range members(data) {
		switch string(name) {
		case "error":
			if isSet(value) {
				v |= meaningful | failure
			}
		case "choices":
			if value[0] != '[' && !isNull(value) {
				return meaningful
			}
			for choice := range elements(value) {
				c, ok := judgeChoice(choice)
				if !ok {
					return meaningful
				}
				v |= c
			}
		}
	}
	return v
}

// judgeChoice reads one choice of a chunk. It is false where that is not what a
// choice is.
func judgeChoice(choice []byte) (v verdict, ok bool) {
	if choice[0] != '{' {
		return 0, isNull(choice)
	}
	for name, value := range members(choice) {
		kind := byte(0) // that the value must have
		switch string(name) {
		case "finish_reason":
			kind = '"'
			if isSet(value) { // some write "" until there is one
				v |= meaningful | finished
			}
		case "text":
			kind = '"'
			if isSet(value) {
				v |= meaningful
			}
		case "delta":
			kind = '{'
			for name, value := range members(value) {
				if string(name) != "role" && isSet(value) {
					v |= meaningful
				}
			}
		}
		if kind != 0 && value[0] != kind && !isNull(value) {
			return 0, false
		}
	}
	return v, true
}

func isNull(value []byte) bool { return string(value) == "null" }

// isSet reports whether a JSON value says anything.
func isSet(value []byte) bool {
	switch string(value) {
	case "null", `""`, "[]", "{}":
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

// hasValue reports whether a member of that quoted name has another value than null
// and "".
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
		if len(rest) == 0 || rest[0] != 'n' && !bytes.HasPrefix(rest, []byte(`""`)) {
			return true
		}
	}
}
