package mcp_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"signalbox.dev/services/tool-executor/internal/mcp"
)

// FuzzScanner compares the scanner with a decoder: JSON that it lets through is no deeper than
// it may be, and has no more values than it counted, in whatever pieces the text arrives and
// however its lines are spread over an event.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{`{}`, `[1,"a",{"b":[null]}]`, `"a\"[[["`, `{"a\\":"[","b":[[]]}`, strings.Repeat("[", 80), strings.Repeat("[", 60) + strings.Repeat("]", 60), "\"\u2028[\"", `{"a":"x]]]]"}`} {
		f.Add([]byte(text), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		deepest, values, ok := measure(text)
		if !ok {
			return // no decoder takes it
		}
		event := append([]byte("data: "), bytes.ReplaceAll(text, []byte("\n"), []byte("\ndata: "))...)
		for _, sse := range []bool{false, true} {
			body := text
			if sse {
				body = append(event, "\n\n"...)
			}
			counted, err := mcp.Scan(body, sse, int(piece)+1)
			switch {
			case err == nil && deepest > mcp.MaxDepth:
				t.Errorf("a depth of %d is let through (event stream: %t): %q", deepest, sse, text)
			case err != nil && deepest <= mcp.MaxDepth:
				t.Errorf("a depth of %d is refused (event stream: %t): %v: %q", deepest, sse, err, text)
			case err == nil && counted+1 < values:
				t.Errorf("%d values are counted, there are %d (event stream: %t): %q", counted, values, sse, text)
			}
		}
	})
}

// measure returns the depth and the number of values of a JSON text; ok is false if it is
// none.
func measure(text []byte) (deepest int, values int64, ok bool) {
	if !json.Valid(text) {
		return 0, 0, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	level := 0
	for {
		token, err := d.Token()
		if err != nil {
			return deepest, values, true
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			level++
			values++
			deepest = max(deepest, level)
		case json.Delim('}'), json.Delim(']'):
			level--
		default:
			values++
		}
	}
}
