package scan_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// walk enters everything and returns one word for each thing it finds.
func walk(s *scan.Scanner, out []string, depth int) []string {
	if depth > 50 {
		return append(out, "deep "+string(s.Bytes(s.Skip())))
	}
	switch s.Kind() {
	case '{':
		out = append(out, "{")
		for name := range s.Members() {
			out = walk(s, append(out, string(s.Bytes(name))+":"), depth+1)
		}
		return append(out, "}")
	case '[':
		out = append(out, "[")
		for range s.Elements() {
			out = walk(s, out, depth+1)
		}
		return append(out, "]")
	case '"':
		p, _ := s.String()
		return append(out, `"`+string(s.Bytes(p))+`"`)
	}
	return append(out, string(s.Value()))
}

func TestWalk(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, want string
		bad      bool
	}{
		{`{}`, "{ }", false},
		{` [ ] `, "[ ]", false},
		{`{"a":1,"b":[true,null,-1.5e3],"c":{"d":"e"},"f":[]}`, `{ a: 1 b: [ true null -1.5e3 ] c: { d: "e" } f: [ ] }`, false},
		{"{ \"a\" :\n1 ,\t\"b\" : {} }", "{ a: 1 b: { } }", false},
		{`["a\"b","\\","\\\"",""]`, `[ "a\"b" "\\" "\\\"" "" ]`, false},
		{`[[[[]]],[{}]]`, "[ [ [ [ ] ] ] [ { } ] ]", false},
		{`{"a":1,"a":2}`, "{ a: 1 a: 2 }", false},
		{`9007199254740993`, "9007199254740993", false},
		{``, "", true},
		{`{"a"`, "{ }", true},
		{`{"a":1`, "{ a: 1 }", true},
		{`{"a":"b`, `{ a: "" }`, true},
		{`{"a":1,}`, "{ a: 1 }", true},
		{`[1,]`, "[ 1 ]", true},
		{`[1 2]`, "[ 1 ]", true},
		{`{"a" 1}`, "{ }", true},
		{`{a:1}`, "{ }", true},
		{`[}`, "[  ]", true},
	}
	for _, tt := range tests {
		s := scan.New([]byte(tt.in))
		got := strings.Join(walk(&s, nil, 0), " ")
		if got != tt.want || s.Bad() != tt.bad || (!tt.bad && s.Rest()) {
			t.Errorf("walk(%s) = %s, bad %v, want %s, %v", tt.in, got, s.Bad(), tt.want, tt.bad)
		}
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`[{"a":`, 1_000_000) + "1" + strings.Repeat("}]", 1_000_000)
	s := scan.New([]byte(` [` + deep + `, "x", ` + deep + `]`))
	for i := range s.Elements() {
		switch i {
		case 0:
			if p := s.Skip(); string(s.Bytes(p)) != deep {
				t.Errorf("Skip went past %d bytes, want %d", p.To-p.From, len(deep))
			}
		case 1:
			if got := string(s.Value()); got != `"x"` {
				t.Errorf("the element behind it is %.20q", got)
			}
		case 2: // the loop skips what its body leaves
		default:
			t.Fatal("there is a fourth element")
		}
	}
	if s.Rest() || s.Bad() {
		t.Errorf("rest %v, bad %v", s.Rest(), s.Bad())
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{`name`: true, `n\u0061me`: true, `\u006e\u0061\u006d\u0065`: true, `nam`: false, `n\u0062me`: false, `name\u0000`: false} {
		s := scan.New([]byte(`{"` + raw + `":1}`))
		for p := range s.Members() {
			if got := s.Is(p, "name"); got != want {
				t.Errorf("Is(%s, name) = %v, want %v", raw, got, want)
			}
		}
	}
	if got := string(scan.Text([]byte(`a\n\"\ud83d\ude00`))); got != "a\n\"😀" {
		t.Errorf("Text = %q", got)
	}
}

// Valid JSON is never bad, and every value is found where encoding/json finds it; any other
// text is harmless.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":[1,"b\"",{"c":null}],"d":{}}`, `[[],{}]`, `"\\"`, ` 1 `, `{"a":`, `[1,]`, `}`, `{"a":1}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := scan.New(in)
		words := walk(&s, nil, 0)
		if !json.Valid(in) {
			return
		}
		if s.Bad() || s.Rest() {
			t.Fatalf("%q: bad %v", in, s.Bad())
		}
		if !utf8.Valid(in) {
			return // encoding/json replaces invalid bytes in names, which stay here
		}
		whole := scan.New(in)
		if got := strings.TrimSpace(string(in)); string(whole.Bytes(whole.Skip())) != strings.Trim(string(in), " \t\r\n") {
			t.Fatalf("Skip of %q leaves something", got)
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(in, &members) != nil || members == nil {
			return
		}
		again := scan.New(in)
		last := map[string]string{}
		for name := range again.Members() {
			last[string(scan.Text(again.Bytes(name)))] = string(again.Value())
		}
		want := map[string]string{}
		for k, v := range members {
			want[k] = string(v)
		}
		if diff := cmp.Diff(want, last); diff != "" {
			t.Fatalf("members of %q (-want +got), walked %v:\n%s", in, words, diff)
		}
	})
}

// On JSON objects TopString agrees with encoding/json if the string has no escapes, and it
// never fails on anything else.
func FuzzTopString(f *testing.F) {
	for _, s := range []string{`{"type":"a"}`, `{"x":{"type":"b"},"type":"a"}`, `{"x":"type","type" : "a"}`, `{"x":["type","b"],"type":1}`, `["type","a"]`, `{"a\"b":"\\","type":"a`, `{"type`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := scan.TopString(data, "type")
		if !json.Valid(data) {
			return
		}
		var obj map[string]json.RawMessage
		if json.Unmarshal(data, &obj) != nil || bytes.Count(data, []byte("type")) != 1 {
			return
		}
		var want string
		if json.Unmarshal(obj["type"], &want) != nil || bytes.ContainsRune(obj["type"], '\\') || string(obj["type"]) != `"`+want+`"` {
			return
		}
		if string(got) != want {
			t.Fatalf("TopString(%q) = %q, want %q", data, got, want)
		}
	})
}
