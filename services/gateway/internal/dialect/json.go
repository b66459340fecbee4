package dialect

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// jsonObject is an unfinished JSON object. Keys are constants and need no escaping.
type jsonObject []byte

func object(dst []byte, kind string) jsonObject {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, kind...)
	return append(dst, '"')
}

func (o jsonObject) key(k string) jsonObject {
	o = append(o, ',', '"')
	o = append(o, k...)
	return append(o, '"', ':')
}

func (o jsonObject) text(k, v string) jsonObject { return appendString(o.key(k), v) }

func (o jsonObject) number(k string, v int64) jsonObject { return strconv.AppendInt(o.key(k), v, 10) }

func (o jsonObject) truth(k string, v bool) jsonObject { return strconv.AppendBool(o.key(k), v) }

// time adds a time, unless it is absent.
func (o jsonObject) time(k string, at *timestamppb.Timestamp) jsonObject {
	if at == nil {
		return o
	}
	return o.text(k, at.AsTime().Format(time.RFC3339Nano))
}

func (o jsonObject) call(callID, tool string) jsonObject {
	return o.text("toolCallId", callID).text("toolName", tool)
}

// progress adds what a tool reports of a call.
func (o jsonObject) progress(m *runv1.ToolProgress) jsonObject {
	if m.GetMessage() != "" {
		o = o.text("message", m.GetMessage())
	}
	if m.Percent != nil {
		o = o.number("percent", int64(m.GetPercent()))
	}
	return o
}

func progressData(m *runv1.ToolProgress) jsonObject {
	return jsonObject(appendString([]byte(`{"toolCallId":`), m.GetToolCallId())).text("toolName", m.GetToolName()).progress(m)
}

// args adds a tool call's arguments, a JSON object.
func (o jsonObject) args(v string) jsonObject { return o.json("args", v, "{}") }

// json adds v, JSON from another service, on one line. Invalid JSON, which would make the
// event unreadable, is replaced by otherwise.
func (o jsonObject) json(k, v, otherwise string) jsonObject {
	o = o.key(k)
	if !json.Valid([]byte(v)) {
		return append(o, otherwise...)
	}
	for i := range len(v) {
		if v[i] == '\n' || v[i] == '\r' {
			var line bytes.Buffer
			_ = json.Compact(&line, []byte(v)) // valid, so it cannot fail
			return append(o, line.Bytes()...)
		}
	}
	return append(o, v...)
}

func (o jsonObject) end() []byte { return append(o, '}') }

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

const hex = "0123456789abcdef"

// appendString appends s as a JSON string on one line. Like encoding/json it replaces invalid
// UTF-8 by U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscape(dst, c)
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
