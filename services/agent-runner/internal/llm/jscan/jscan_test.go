package jscan_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

var texts = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `12`, `-1.5e+10`, `1E9`, `""`, `"a"`, ` "a" `,
	`{"a":1,"b":[1,2,{"c":null}],"d":"x\ny"}`, "{\n\t\"a\" : [ ] }", `"\u00e9\ud83d\ude00\/\""`, `"\ud83d"`, `"\u0000"`,
	`9007199254740993`, `123456789012345678901234567890`, `"12345678901234567890\\"`,
	// what is wrong
	``, ` `, `{`, `}`, `[`, `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a":1 "b":2}`, `[1 2]`, `01`, `-`, `1.`, `1e`, `.5`, `+1`,
	`tru`, `truex`, `nul`, `"a`, `"\x"`, `"\u12g4"`, `"\u12"`, "\"a\nb\"", "\"\x01\"", `"a"b`, `{1:2}`, `'a'`, `NaN`, `[1]]`, "\"12345678\x1f\"",
}

func TestValid(t *testing.T) {
	t.Parallel()
	for _, text := range texts {
		if got, want := jscan.Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("Valid(%q) = %v, want %v", text, got, want)
		}
	}
	if deep := strings.Repeat("[", 100_000); jscan.Valid([]byte(deep)) {
		t.Error("Valid of 100,000 open brackets = true, want false")
	}
	if deep := strings.Repeat("[", 500) + strings.Repeat("]", 500); !jscan.Valid([]byte(deep)) {
		t.Error("Valid of 500 nested arrays = false, want true")
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	r := jscan.NewReader([]byte(`{"s":"x\ty","n":-42,"f":3.9,"b":true,"z":null,"o":{"k":[1,2]},"\u0065":"esc","big":1e300,"a":[{"i":1},{"i":2}]}`))
	if !r.Object() {
		t.Fatal("Object() = false, want true")
	}
	got := map[string]any{}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch k := string(key); k {
		case "s", "e":
			s, _ := r.Str()
			got[k] = s.String()
		case "n", "f":
			n, _ := r.Int()
			got[k] = n
		case "big":
			_, ok := r.Int()
			got[k] = ok
		case "b":
			v, _ := r.Bool()
			got[k] = v
		case "z":
			_, ok := r.Str()
			got[k] = ok
		case "o":
			got[k] = string(r.Skip())
		case "a":
			var sum int64
			if r.Array() {
				for r.Elem() {
					v := r.Skip()
					n := jscan.NewReader(jscan.Member(v, "i"))
					i, _ := n.Int()
					sum += i
				}
			}
			got[k] = sum
		}
	}
	if !r.Done() {
		t.Errorf("Done() = false, want true")
	}
	want := map[string]any{
		"s": "x\ty", "e": "esc", "n": int64(-42), "f": int64(3), "big": false, "b": true, "z": false,
		"o": `{"k":[1,2]}`, "a": int64(3),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestMember(t *testing.T) {
	t.Parallel()
	text := []byte(`{"a":{"b":1},"c":"x\"y"}`)
	if got, want := string(jscan.Member(text, "a")), `{"b":1}`; got != want {
		t.Errorf("Member(a) = %q, want %q", got, want)
	}
	if got := jscan.Member(text, "zz"); got != nil {
		t.Errorf("Member(zz) = %q, want nil", got)
	}
	if got, want := jscan.MemberString(text, "c"), `x"y`; got != want {
		t.Errorf("MemberString(c) = %q, want %q", got, want)
	}
	if got := jscan.MemberString(text, "a"); got != "" {
		t.Errorf("MemberString(a) = %q, want empty", got)
	}
	if got := jscan.Member([]byte(`[1]`), "a"); got != nil {
		t.Errorf("Member of an array = %q, want nil", got)
	}
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"", `""`},
		{"plain", `"plain"`},
		{"q\"b\\n\nr\rt\tb\bf\f\x01\x7f", `"q\"b\\n\nr\rt\tb\bf\f\u0001` + "\x7f\""},
		{"é世😀", `"é世😀"`},
		{"\xff\xc3(", `"` + "\ufffd\ufffd(\""},
		{"cut \xe4\xb8", `"cut ` + "\ufffd\ufffd\""},
		{"nul\x00", `"nul` + "\ufffd\""},
		{"\ufffd", "\"\ufffd\""},
		{"<a&b>\u2028", "\"<a&b>\u2028\""},
	}
	for _, tt := range tests {
		if got := string(jscan.AppendString(nil, tt.in)); got != tt.want {
			t.Errorf("AppendString(%q) = %s, want %s", tt.in, got, tt.want)
		}
		if got := string(jscan.AppendString(nil, []byte(tt.in))); got != tt.want {
			t.Errorf("AppendString([]byte %q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestDecoder(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   []string
		want string
	}{
		{"plain", []string{"a", "b"}, "ab"},
		{"escapes", []string{`\"\\\/\b\f\n\r\té`}, "\"\\/\b\f\n\r\té"},
		{"pair", []string{`\ud83d\ude00`}, "😀"},
		{"pair over two fragments", []string{`x\ud83d`, `\ude00y`}, "x😀y"},
		{"first half alone", []string{`\ud83d`, `x`}, "\ufffdx"},
		{"first half at the end", []string{`\ud83d`}, "\ufffd"},
		{"two first halves", []string{`\ud83d`, `\ud83d\ude00`}, "\ufffd😀"},
		{"second half alone", []string{`\ude00x`}, "\ufffdx"},
		{"first half before an escape", []string{`\ud83d`, `\n`}, "\ufffd\n"},
		{"an empty fragment between the halves", []string{`\ud83d`, ``, `\ude00`}, "😀"},
		{"NUL", []string{`a\u0000b`}, "a\ufffdb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var d jscan.Decoder
			var got []byte
			for _, in := range tt.in {
				got = d.Append(got, []byte(in))
			}
			got = d.Finish(got)
			if string(got) != tt.want {
				t.Errorf("Decoder over %q = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestAppendCompact(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"{ \"a\" :\n [ 1 , 2.50 , \"x y\" ] }", `{"a":[1,2.50,"x y"]}`},
		{`{"n":9007199254740993,"e":1.0E+2}`, `{"n":9007199254740993,"e":1.0E+2}`},
		{`"\ud83d\ude00 \ud83d \ude00 \u0000 \\u0000 \u00E9"`, `"\ud83d\ude00 \ufffd \ufffd \ufffd \\u0000 \u00E9"`},
		{`"\ud83dA"`, `"\ufffdA"`},
	}
	for _, tt := range tests {
		if got := string(jscan.AppendCompact(nil, []byte(tt.in))); got != tt.want {
			t.Errorf("AppendCompact(%s) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

// The scanner accepts what encoding/json accepts (up to its depth), and what it
// writes is the same value.
func FuzzScan(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if strings.Count(string(in), "[")+strings.Count(string(in), "{") > 500 {
			return
		}
		valid := jscan.Valid(in)
		if want := json.Valid(in); valid != want {
			t.Fatalf("Valid(%q) = %v, want %v", in, valid, want)
		}
		quoted := jscan.AppendString(nil, in)
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil {
			t.Fatalf("AppendString(%q) = %q: %v", in, quoted, err)
		}
		if got := string(jscan.AppendUnescaped(nil, quoted[1:len(quoted)-1])); got != back {
			t.Fatalf("AppendUnescaped(%q) = %q, want %q", quoted, got, back)
		}
		if !valid {
			return
		}
		var v, w any
		if json.Unmarshal(in, &v) != nil {
			return // a number no float64 holds
		}
		compact := jscan.AppendCompact(nil, jscan.ValidUTF8(in))
		if err := json.Unmarshal(compact, &w); err != nil || !utf8.Valid(compact) {
			t.Fatalf("AppendCompact(%q) = %q: %v", in, compact, err)
		}
		if utf8.Valid(in) && !strings.Contains(string(in), `\u0000`) && !cmp.Equal(v, w) {
			t.Fatalf("AppendCompact(%q) = %q, another value", in, compact)
		}
	})
}
