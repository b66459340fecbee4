package sse

import (
	"bytes"
	"strconv"
	"strings"
)

// AppendEvent appends an event to dst: type, data and id, in this order, and the blank line
// that dispatches it. An empty type or id is omitted. Data with line breaks (\n, \r or \r\n)
// becomes several data lines, which a reader joins with \n. Line breaks and NUL in a type or
// id cannot be written and are dropped.
func AppendEvent(dst []byte, event string, data []byte, id string) []byte {
	if event != "" {
		dst = append(dst, "event: "...)
		dst = appendLine(dst, event)
	}
	dst = appendData(dst, data)
	if id != "" {
		dst = append(dst, "id: "...)
		dst = appendLine(dst, id)
	}
	return append(dst, '\n')
}

// AppendHeartbeat appends the comment line ":", without a blank line.
func AppendHeartbeat(dst []byte) []byte {
	return append(dst, ":\n"...)
}

// AppendRetry appends the reconnection time in milliseconds as a line, without a blank line: it
// takes effect without one.
func AppendRetry(dst []byte, ms int) []byte {
	dst = append(dst, "retry: "...)
	dst = strconv.AppendInt(dst, int64(max(ms, 0)), 10)
	return append(dst, '\n')
}

func appendData(dst, data []byte) []byte {
	for bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 {
		i := bytes.IndexAny(data, "\r\n")
		dst = append(dst, "data: "...)
		dst = append(dst, data[:i]...)
		dst = append(dst, '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
	dst = append(dst, "data: "...)
	dst = append(dst, data...)
	return append(dst, '\n')
}

func appendLine(dst []byte, s string) []byte {
	if !strings.ContainsAny(s, "\r\n\x00") {
		dst = append(dst, s...)
		return append(dst, '\n')
	}
	for i := range len(s) {
		if c := s[i]; c != '\r' && c != '\n' && c != 0 {
			dst = append(dst, c)
		}
	}
	return append(dst, '\n')
}
