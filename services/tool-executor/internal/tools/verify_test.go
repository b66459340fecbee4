package tools_test

import (
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/simulator/apis"
)

// TestEffectsCanBeVerified looks each effect up before the call, after the service refused it, and
// after its answer was lost.
func TestEffectsCanBeVerified(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		provider, args string
		reads          int  // requests before the one that changes something
		shared         bool // the effect is a state, which any call may have brought about
	}{
		"tasks_create":          {"google", `{"title":"Buy tea"}`, 0, false},
		"tasks_complete":        {"google", `{"id":"seedtask1"}`, 0, true},
		"tasks_delete":          {"google", `{"id":"seedtask1"}`, 0, true},
		"calendar_update_event": {"google", `{"id":"seed00004","title":"x"}`, 1, false},
		"notion_append":         {"notion", `{"id":"` + apis.PageID("Meeting notes") + `","content":"- one\n- two"}`, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			key := id.New[id.Operation]()
			expect := func(want bool, when string) {
				t.Helper()
				if r, found, err := w.verify(t.Context(), key, name, tt.args); err != nil || found != want || found && r.IsError() {
					t.Errorf("%s: Verify = %s, %v, %v, want found %v", when, r.JSON(), found, err, want)
				}
			}
			run := func(f apis.Fault) {
				t.Helper()
				f.Provider = tt.provider
				for range tt.reads {
					w.apis.Fail(apis.Fault{Provider: tt.provider}) // nothing goes wrong
				}
				w.apis.Fail(f)
				if _, err := w.callAs(t.Context(), key, name, tt.args); fault.KindOf(err) != fault.Unavailable {
					t.Errorf("%s with %+v = %v, want Unavailable", name, f, err)
				}
			}
			expect(false, "before the call")
			run(apis.Fault{Status: http.StatusServiceUnavailable})
			expect(false, "after the service refused")
			run(apis.Fault{Status: http.StatusBadGateway, After: true})
			expect(true, "after the answer was lost")
			key = id.New[id.Operation]()
			expect(tt.shared, "for another call")
		})
	}
}

func TestNotion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	found := w.must(t, "notion_search", map[string]any{"max_results": 2})
	if got := strings.Join(titles(found, "pages", "title"), ", "); got != "Team handbook, Meeting notes" {
		t.Errorf("notion_search = %s", got)
	}
	rest := w.must(t, "notion_search", map[string]any{"page_token": found["next_page_token"]})
	if got := titles(rest, "pages", "title"); len(got) != 1 || got[0] != "Reading list" || rest["next_page_token"] != nil || rest["simulated"] != true {
		t.Errorf("the rest = %v", rest)
	}
	notes := apis.PageID("Meeting notes")
	const added = "## Next\n\nSee **bold** *words* and `code` at [a place](https://example.com).\n\n- one\n  - below\n- [x] done\n\n1. first\n\n> said\n\n```go\nx := 1\n```\n\n---\n\nend"
	if got := w.must(t, "notion_append", map[string]any{"id": "https://www.notion.so/Meeting-notes-" + strings.ReplaceAll(notes, "-", "") + "?pvs=4", "content": added}); got["id"] != notes || got["blocks"] != 9.0 {
		t.Errorf("notion_append = %v", got)
	}
	read := w.must(t, "notion_read_page", map[string]any{"id": notes})
	const before = "## Last Monday\n\nWe agreed to ship the search first.\n\n- [ ] Mara writes the announcement\n- [ ] Jonas measures the load\n\n"
	const after = "## Next\n\nSee **bold** *words* and `code` at [a place](https://example.com).\n\n- one\n  - below\n- [x] done\n\n1. first\n\n> said\n\n```go\nx := 1\n```\n\n---\n\nend\n"
	if read["title"] != "Meeting notes" || read["content"] != before+after {
		t.Errorf("notion_read_page = %q, want %q", read["content"], before+after)
	}
	for args, kind := range map[string]fault.Kind{
		`{"id":"not-an-id-not-an-id-not-an-id-not-an-id","content":"x"}`:          fault.Invalid,
		`{"id":"` + notes + `","content":"  \n "}`:                                fault.Invalid,
		`{"id":"` + notes + `","content":"` + strings.Repeat(`a\n\n`, 101) + `"}`: fault.TooLarge,
		`{"id":"` + id.New[id.Document]().String() + `","content":"x"}`:           fault.NotFound,
	} {
		if _, err := w.call(t.Context(), "notion_append", args); fault.KindOf(err) != kind {
			t.Errorf("notion_append(%.80s) = %v, want %v", args, err, kind)
		}
	}
}

// TestNotionReadPages reads a long page in parts, whatever the part's size.
func TestNotionReadPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var got strings.Builder
	args := map[string]any{"id": apis.PageID("Team handbook")}
	for pages := 1; ; pages++ {
		page := w.must(t, "notion_read_page", args)
		got.WriteString(page["content"].(string))
		if page["next_page_token"] == nil {
			break
		}
		if args["page_token"] = page["next_page_token"]; pages > 5 {
			t.Fatal("the parts do not end")
		}
	}
	text := got.String()
	if strings.Count(text, "Leave the place") != 360 || !strings.Contains(text, "- Core hours are 10 to 15.\n  - Fridays are free of meetings.\n") ||
		!strings.HasPrefix(text, "# How we work\n\n") || !strings.Contains(text, "Rule 120. ") {
		t.Errorf("the parts hold %d bytes: %.300q", len(text), text)
	}
	for _, token := range []string{"x", "-1.0.", "0.0.unknown"} {
		args["page_token"] = token
		if _, err := w.call(t.Context(), "notion_read_page", `{"id":"`+apis.PageID("Team handbook")+`","page_token":"`+token+`"}`); fault.KindOf(err) != fault.Invalid {
			t.Errorf("page_token %q = %v, want Invalid", token, err)
		}
	}
}
