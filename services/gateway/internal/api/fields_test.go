package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

type inner struct {
	Label string `json:"label"`
}

type outer struct {
	inner2
	Name    string            `json:"name"`
	Content *string           `json:"content,omitempty"`
	Prompt  string            `json:"system_prompt"`
	Items   []inner           `json:"items"`
	Extra   map[string]string `json:"extra"`
	Any     Content           `json:"any"`
	Hidden  string            `json:"-"`
}

type inner2 struct {
	Own *inner `json:"own"`
}

func TestCheckBody(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ body, want string }{
		{`{}`, ""},
		{` { "name" : "x" , "own" : { "label" : null } , "items" : [ { } , { "label":"y" } ], "extra":{"names":"z"}, "any":[{"txet":1}] } `, ""},
		{`{"NAME":"x"}`, ""},
		{`{"name":"x","id":"1","created_at":"2020","sequence":3}`, ""},
		{`{"name":"x","contnet":"y"}`, "contnet: no such field; did you mean content?"},
		{`{"contnet":"y"}`, "contnet: no such field; did you mean content?"},
		{`{"name":"x","conten":"y"}`, "did you mean content?"},
		{`{"name":"x","systemPrompt":"y"}`, "did you mean system_prompt?"},
		{`{"name":"x","systm_promt":"y"}`, "did you mean system_prompt?"},
		{`{"nam":"x"}`, "did you mean name?"},
		{`{"na":"x","content":""}`, ""},
		{`{"name":"x","items":[{"label":"y"},{"lable":"y"}]}`, "items[1].lable: no such field; did you mean label?"},
		{`{"own":{"labels":"y"}}`, "own.labels: no such field; did you mean label?"},
		{`{"own":{"colour":"y"}}`, ""},
		{`{"colour":"y","size":2}`, "colour: no such field; the fields are any, content, extra, items, name, own, system_prompt"},
		{`{"c\u006fntnet":"y"}`, "contnet: no such field"},
		{`{"name":"a\ud83d\ude00b"}`, ""},
		{`{"name":"a\\ud800"}`, ""},
		{`{"name":"a\ud800"}`, `name: has \ud800, half of a surrogate pair`},
		{`{"name":"a\ud800\u0041"}`, `name: has \ud800`},
		{`{"name":"\ud800\\udc00"}`, `name: has \ud800`},
		{`{"name":"\uDC00\ud800"}`, `name: has \udc00`},
		{`{"any":[{"type":"text","text":"\udfff"}]}`, `any[0].text: has \udfff`},
		{`{"name":"x","other":{"a":["\udfff"]}}`, `other.a[0]: has \udfff`},
		{`{"name":"x","\ud800":1}`, `the body: has \ud800`},
	} {
		var v outer
		err := decodeJSON([]byte(tt.body), &v)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("decodeJSON(%s) = %v, want %q", tt.body, err, tt.want)
		}
	}
}

// FuzzCheckBody checks arbitrary valid JSON.
func FuzzCheckBody(f *testing.F) {
	for _, s := range []string{`{"name":"\ud800"}`, `[1,{"a":"\\"},null]`, `{"items":[{"lable":{}}],"own":[[]]}`, ` -1.5e3 `, `"\u12"`, "{\"name\" :\n{}}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) {
			return
		}
		c := &bodyChecker{data: data}
		if err := c.value(reflect.TypeFor[*outer]()); err == nil && len(bytes.TrimSpace(data[c.at:])) > 0 {
			t.Errorf("%q is left of %q", data[c.at:], data)
		}
	})
}

// The memory and time of a check are proportional to the size of the body, however deep it is and
// however many unknown fields it has.
func TestCheckBodyIsBounded(t *testing.T) {
	t.Parallel()
	const depth = 4_500
	name := strings.Repeat("k", 80)
	deep := `{"name":"a","x":` + strings.Repeat(`{"`+name+`":[`, depth) + strings.Repeat(`]}`, depth) + `}`
	var wide strings.Builder
	wide.WriteString(`{"name":"a"`)
	for i := range 20_000 {
		fmt.Fprintf(&wide, `,"unknown%d":0`, i)
	}
	wide.WriteString(`}`)
	for what, body := range map[string]string{"deep": deep, "wide": wide.String()} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := checkBody([]byte(body), reflect.TypeFor[struct {
			Name string `json:"name"`
		}]()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 40*uint64(len(body)) {
			t.Errorf("%s: a body of %d bytes took %d bytes of memory", what, len(body), took)
		}
	}
}
