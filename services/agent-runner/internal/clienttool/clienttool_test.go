package clienttool_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/agent-runner/internal/clienttool"
)

// FuzzResult checks that whatever a client sends is refused, or becomes one JSON object that is
// bounded and that every reader can parse.
func FuzzResult(f *testing.F) {
	for _, output := range []string{
		"null", ` {"a" : [1e999, "\u00e9"]} `, `"\ud800"`, `"\u0000"`, "\"\xff\"", "{", "1 2", "", strings.Repeat("[", 600), `"` + strings.Repeat("x", 64<<10) + `"`,
		strings.Repeat("[", 60) + strings.Repeat("]", 60),
	} {
		f.Add(output, "")
	}
	f.Add("", "no \xff sensor\x00\u2028")
	f.Add("", strings.Repeat("\x01", 20<<10))
	f.Fuzz(func(t *testing.T, output, message string) {
		envelope, isError, err := clienttool.Result(json.RawMessage(output), message)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge {
				t.Errorf("Result(%.100q, %.100q) = %v, want it Invalid or TooLarge", output, message, err)
			}
			return
		}
		var read map[string]json.RawMessage
		if err := json.Unmarshal(envelope, &read); err != nil || len(read) != 1 || len(envelope) > 64<<10 || !utf8.Valid(envelope) {
			t.Fatalf("Result(%.100q, %.100q) = %.200q, %v, want one small member", output, message, envelope, err)
		}
		if isError != (message != "") || clienttool.IsError(envelope) != isError {
			t.Errorf("Result(%.100q, %.100q) = %.200q is an error: %v, IsError says %v", output, message, envelope, isError, clienttool.IsError(envelope))
		}
	})
}
