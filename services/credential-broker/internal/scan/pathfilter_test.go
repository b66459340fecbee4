package scan_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/scan"
)

var wants = [][]string{{"type"}, {"usage"}, {"response", "usage"}, {"choices", "index"}, {"choices", "finish_reason"}}

// filter filters a text in pieces of n bytes.
func filter(in string, n int) (string, bool) {
	s := scan.NewPathFilter(wants...)
	for piece := range slices.Chunk([]byte(in), n) {
		s.Write(piece)
	}
	kept, ok := s.Kept()
	return string(kept), ok
}

func TestPathFilter(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(`x\"}]}`, 50_000)
	tests := []struct {
		name, in, want string
		ok             bool
	}{
		{"nothing wanted", `{"a":1,"b":{"usage":1,"type":"x"},"c":["type"],"d":"type"}`, `{"":0,"":0,"":0,"":0}`, true},
		{"at the end", `{"a":"` + long + `","type":"t","usage":{"n":[1,{"b":2}]}}`, `{"":0,"type":"t","usage":{"n":[1,{"b":2}]}}`, true},
		{"inside of one", `{"response":{"a":"` + long + `","usage":{"n":1}},"type":"t"}`, `{"response":{"":0,"usage":{"n":1}},"type":"t"}`, true},
		{"in an array", `{"choices":[{"index":0,"delta":{"finish_reason":"x","content":"` + long + `"},"finish_reason":"stop"},{"index":1}, null, 5]}`, `{"choices":[{"index":0,"":0,"finish_reason":"stop"},{"index":1}, null, 5]}`, true},
		{"of another kind", `{"response":null,"choices":"c","usage":7,"type":[ ]}`, `{"response":null,"choices":"c","usage":7,"type":[ ]}`, true},
		{"escaped name", `{"us\u0061ge":1}`, `{"us\u0061ge":1}`, true},
		{"white space", " \r\n\t{ \"a\" : [ ] , \"type\" :\n\"t\" } \n", ` { "" : 0 , "type" : "t" } `, true},
		{"quoted", `{"a":"\",\"usage\":{\"n\":1},\"b\":\"","b":"\\"}`, `{"":0,"":0}`, true},
		{"an array", `[{"type":"t","a":1},[]]`, `[{"type":"t","":0},[]]`, true},
		{"a text", `"type"`, `"type"`, true},
		{"a number", `12`, `12`, true},
		{"empty", `{}`, `{}`, true},
		{"too much", `{"usage":"` + strings.Repeat("x", 100_000) + `"}`, "", false},
		{"too deep", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), "", false},
		{"deep where nothing is wanted", `{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, `{"":0}`, true},
		{"no value", ``, "", false},
		{"two values", `{}{}`, "", false},
		{"cut in a text", `{"type":"t","a":"\"}`, "", false},
		{"cut behind a text", `{"type":"t","a":""`, "", false},
		{"a line's end in a text", "{\"a\":\"\n\"}", "", false},
		{"no comma", `{"a":1 "b":2}`, "", false},
		{"a comma too many", `{"a":[],}`, "", false},
		{"no colon", `{"a" 1}`, "", false},
		{"no name", `{1:1}`, "", false},
		{"closed by another", `{"choices":[}`, "", false},
		{"a word that is none", `{"type":tru}`, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{1, 7, 4096, 1 << 20} {
				if got, ok := filter(tt.in, n); got != tt.want || ok != tt.ok {
					t.Errorf("in pieces of %d: %q, %v, want %q, %v", n, got, ok, tt.want, tt.ok)
				}
			}
		})
	}
}

// However a text is split, a truncated one is never taken for whole, and of a whole one all
// wanted members are kept as encoding/json reads them.
func FuzzPathFilter(f *testing.F) {
	for _, s := range []string{
		`{"type":"a","response":{"x":[1,2],"usage":{"a":1}},"choices":[{"index":0,"finish_reason":"stop","delta":{}}]}`,
		`{"a":"\",\"usage\":1,\"","usage":null}`, ` [ {"type":1} , [ ] , true ] `, `{"a":-1.5e3,"b":[[],{"c":"\\"}]}`, "{\"a\":\"\n\"}", `{"type":1,"type":2}`,
	} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, n uint8) {
		got, ok := filter(string(in), int(n)+1)
		if !json.Valid(in) {
			return // it need not notice, but must return
		}
		if short := bytes.TrimSpace(in); len(short) > 1 && (short[0] == '{' || short[0] == '[') {
			if kept, whole := filter(string(short[:len(short)-1]), int(n)+1); whole {
				t.Fatalf("%q without its end is whole: %q", short, kept)
			}
		}
		if !ok {
			return // deep, or large
		}
		var all, kept any
		if json.Unmarshal(in, &all) != nil {
			return // a number that is too large
		}
		if err := json.Unmarshal([]byte(got), &kept); err != nil {
			t.Fatalf("of %q it keeps %q: %v", in, got, err)
		}
		if duplicates(in) {
			return
		}
		if diff := cmp.Diff(pick(all, wants), pick(kept, wants)); diff != "" {
			t.Fatalf("of %q it keeps %q (-want +got):\n%s", in, got, diff)
		}
	})
}

// pick does on values what a PathFilter does.
func pick(v any, wants [][]string) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			var below [][]string
			whole := false
			for _, w := range wants {
				if w[0] == name {
					whole = whole || len(w) == 1
					below = append(below, w[1:])
				}
			}
			switch {
			case whole:
				out[name] = value
			case len(below) > 0:
				out[name] = pick(value, below)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, pick(e, wants))
		}
		return out
	}
	return v
}

// duplicates reports whether an object may have two members of one name.
func duplicates(in []byte) bool {
	for _, w := range wants {
		for _, name := range w {
			if bytes.Count(in, []byte(name)) > 1 {
				return true
			}
		}
	}
	return bytes.Contains(in, []byte(`\`))
}

func BenchmarkPathFilter(b *testing.B) {
	for name, body := range map[string]string{
		"text":    `{"a":"` + strings.Repeat("QUJD", 1<<19) + `","usage":{"n":1}}`,
		"escapes": `{"a":"` + strings.Repeat(`a line\n`, 1<<18) + `","usage":{"n":1}}`,
		"numbers": `{"a":[` + strings.Repeat("-0.0123456789,", 1<<17) + `1],"usage":{"n":1}}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, ok := filter(body, 32<<10); !ok {
					b.Fatal("not whole")
				}
			}
		})
	}
}
