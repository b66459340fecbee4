package plainjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"signalbox.dev/pkg/plainjson"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		` {"b": 1, "a": "\u00e9"} `:               `{"a":"é","b":1}`,
		`{"a":1,"a":2}`:                           `{"a":2}`,
		`[5.0, 0.5e1, -3E0, 1e2, 0.0, -0.0]`:      `[5,5,-3,100,0,0]`,
		`[0.5, 1e300, 9007199254740993, -0, 1e1]`: `[0.5,1e300,9007199254740993,-0,10]`,
		`{"a":[{"b":[2.0]}],"c":null}`:            `{"a":[{"b":[2]}],"c":null}`,
	} {
		v, err := plainjson.Decode(text)
		if err != nil {
			t.Errorf("Decode(%s): %v", text, err)
			continue
		}
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("Decode(%s) = %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":`:                                "it ends too early",
		`{} {}`:                                "something follows",
		`{"a":01}`:                             "invalid character",
		``:                                     "EOF",
		`{"a":[1e999]}`:                        "out of range: 1e999",
		`{"a":0.` + strings.Repeat("1", 400):   "ends too early",
		`[0.` + strings.Repeat("1", 400) + `]`: "out of range: 0.1111",
	} {
		v, err := plainjson.Decode(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Decode(%.50s) = %v, %v, want an error with %q", text, v, err, want)
			continue
		}
		if syntax := !strings.Contains(want, "range"); errors.Is(err, plainjson.ErrSyntax) != syntax {
			t.Errorf("Decode(%.50s): the error %q is one of the syntax: %v, want %v", text, err, !syntax, syntax)
		}
	}
}
