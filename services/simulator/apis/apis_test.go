package apis_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/simulator/authserver"
)

func now() time.Time { return time.Date(2026, time.November, 21, 17, 45, 3, 0, time.UTC) }

// ask sends a request and returns status, headers and body.
func ask(t *testing.T, s *apis.Server, request, token, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Notion-Version", "2022-06-28")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Header().Get("X-Simulated") == "" {
		t.Errorf("%s does not say that it is simulated", request)
	}
	return w
}

// TestAnswers compares statuses, and words of the bodies, with the real services'.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const events, tasks = "/google/calendar/v3/calendars/primary/events", "/google/tasks/v1/lists/@default/tasks"
	page := apis.PageID("Team handbook")
	for request, want := range map[string]struct {
		body   string
		status int
		says   string
	}{
		"GET " + events + "?fields=items/id&maxResults=1":               {"", 200, `{"items":[{"id":"seed00000"}]}`},
		"GET " + events + "?fields=items(id,start/dateTime)&q=dentist":  {"", 200, `{"items":[{"id":"seed00002","start":{"dateTime":"2026-11-21T17:00:00Z"}}]}`},
		"GET " + events + "?fields=items(id":                            {"", 400, `"reason":"invalidParameter"`},
		"GET " + events + "?fields=items(id))":                          {"", 400, `"reason":"invalidParameter"`},
		"GET " + events + "?fields=" + strings.Repeat("a(", 50):         {"", 400, `"reason":"invalidParameter"`},
		"GET " + events + "?orderBy=startTime":                          {"", 400, "ordering is not available"},
		"GET " + events + "?pageToken=x":                                {"", 400, `"reason":"invalid"`},
		"GET /google/calendar/v3/calendars/other/events":                {"", 404, `"reason":"notFound"`},
		"GET " + events + "/nothing":                                    {"", 404, `"reason":"notFound"`},
		"POST " + events:                                                {`{"id":"NOT-ALLOWED","start":{"date":"2026-01-01"},"end":{"date":"2026-01-02"}}`, 400, "Invalid resource id value."},
		"POST " + events + "?x=taken":                                   {`{"id":"seed00001","start":{"date":"2026-01-01"},"end":{"date":"2026-01-02"}}`, 409, `"reason":"duplicate"`},
		"POST " + events + "?x=endless":                                 {`{"start":{"date":"2026-01-01"}}`, 400, "Missing end time."},
		"POST " + events + "?x=json":                                    {`{`, 400, `"reason":"parseError"`},
		"GET " + tasks + "?maxResults=1&fields=items/title":             {"", 200, `{"items":[{"title":"Send the offer to Priya"}]}`},
		"POST " + tasks:                                                 {`{"title":"x","due":"tomorrow"}`, 400, "Invalid Value"},
		"DELETE " + tasks + "/nothing":                                  {"", 404, `"reason":"notFound"`},
		"GET /notion/v1/pages/nothing":                                  {"", 400, `"code":"validation_error"`},
		"GET /notion/v1/pages/00000000-0000-0000-0000-000000000000":     {"", 404, `"code":"object_not_found"`},
		"GET /notion/v1/blocks/" + page + "/children?page_size=1":       {"", 200, `"has_more":true`},
		"GET /notion/v1/blocks/" + page + "/children?page_size=101":     {"", 400, `"code":"validation_error"`},
		"GET /notion/v1/blocks/" + page + "/children?start_cursor=x":    {"", 400, "start_cursor"},
		"PATCH /notion/v1/blocks/" + page + "/children":                 {`{"children":[{"type":"paragraph","paragraph":{"rich_text":[{"text":{"content":"` + strings.Repeat("x", 2001) + `"}}]}}]}`, 400, "should be ≤ `2000`"},
		"PATCH /notion/v1/blocks/" + page + "/children?x=none":          {`{"children":[]}`, 400, "body.children.length"},
		"GET /github/repos/signalbox/research/contents/ideas":           {"", 200, `[{"name":"README.md","path":"ideas/README.md","sha":`},
		"GET /github/repos/signalbox/research/contents/ideas/empty.md":  {"", 200, `"content":"","encoding":"base64","name":"empty.md"`},
		"GET /github/repos/signalbox/research/contents/ideas/link.md":   {"", 200, `"type":"symlink"`},
		"GET /github/repos/signalbox/research/contents/ideas/vendor":    {"", 200, `"type":"submodule"`},
		"GET /github/repos/signalbox/research/contents/ideas/huge.bin":  {"", 200, `"encoding":"none"`},
		"GET /github/repos/signalbox/research/contents/ideas/none.md":   {"", 404, `"message":"Not Found"`},
		"GET /github/repos/signalbox/research/contents/ideas?ref=other": {"", 404, "No commit found for the ref other"},
		"GET /github/repos/other/research/contents/ideas":               {"", 404, `"message":"Not Found"`},
	} {
		w := ask(t, apis.New(apis.Config{Now: now}), request, "any", want.body)
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.says) || w.Code >= 400 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s = %d %.400s, want %d with %s", request, w.Code, w.Body, want.status, want.says)
		}
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	s := apis.New(apis.Config{Now: now})
	const event = "/google/calendar/v3/calendars/primary/events/seed00002"
	var before struct{ ETag string }
	if err := json.Unmarshal(ask(t, s, "GET "+event, "a", "").Body.Bytes(), &before); err != nil || before.ETag == "" {
		t.Fatalf("etag %q, %v", before.ETag, err)
	}
	if w := ask(t, s, "PATCH "+event, "a", `{"summary":"x","location":null}`, "If-Match", before.ETag); w.Code != 200 || strings.Contains(w.Body.String(), "Harbour") {
		t.Errorf("PATCH = %d %s", w.Code, w.Body)
	}
	if w := ask(t, s, "PATCH "+event, "a", `{"summary":"y"}`, "If-Match", before.ETag); w.Code != 412 {
		t.Errorf("PATCH of an older version = %d %s", w.Code, w.Body)
	}
	for _, want := range []int{204, 410} {
		if w := ask(t, s, "DELETE "+event, "a", ""); w.Code != want {
			t.Errorf("DELETE = %d, want %d", w.Code, want)
		}
	}
	if w := ask(t, s, "GET "+event, "another", ""); !strings.Contains(w.Body.String(), "Dentist") {
		t.Errorf("another account sees %s", w.Body)
	}
}

// TestReplicas: of several simulators, each knows the blocks that another one has listed.
func TestReplicas(t *testing.T) {
	t.Parallel()
	list := func() string {
		return ask(t, apis.New(apis.Config{Now: now}), "GET /notion/v1/blocks/"+apis.PageID("Team handbook")+"/children", "t", "").Body.String()
	}
	one, other := list(), list()
	if one != other || !strings.Contains(one, "Core hours") {
		t.Errorf("two simulators list\n%s\nand\n%s", one, other)
	}
}

// TestTokens lets tokens expire and be revoked.
func TestTokens(t *testing.T) {
	t.Parallel()
	issuer := authserver.New(authserver.Settings{LifeSeconds: -1})
	s := apis.New(apis.Config{Good: issuer.Good})
	token, _ := issuer.Grant()
	paths := map[string]string{
		"/google/tasks/v1/lists/@default/tasks":           `"reason":"authError"`,
		"/notion/v1/pages/" + apis.PageID("Reading list"): `"code":"unauthorized"`,
		"/github/repos/signalbox/research/contents/ideas": "Bad credentials",
	}
	for path, says := range paths {
		if w := ask(t, s, "GET "+path, token, ""); w.Code != 200 {
			t.Errorf("%s with a good token = %d", path, w.Code)
		}
		for _, bad := range []string{"bad-token", "access-unknown", ""} {
			if w := ask(t, s, "GET "+path, bad, ""); w.Code != 401 || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s with the token %q = %d %s", path, bad, w.Code, w.Body)
			}
		}
	}
	issuer.End(token)
	for path := range paths {
		if w := ask(t, s, "GET "+path, token, ""); w.Code != 401 {
			t.Errorf("%s with a revoked token = %d", path, w.Code)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s := apis.New(apis.Config{Now: now})
	const path = "/google/tasks/v1/lists/@default/tasks?fields=items/title&maxResults=1"
	if w := ask(t, s, "POST /faults", "", `{"provider":"google","status":403,"reason":"rateLimitExceeded","retry_after":"7","times":2}`); w.Code != 204 {
		t.Fatalf("POST /faults = %d %s", w.Code, w.Body)
	}
	for range 2 {
		w := ask(t, s, "GET "+path, "a", "")
		if w.Code != 403 || w.Header().Get("Retry-After") != "7" || !strings.Contains(w.Body.String(), `"domain":"usageLimits"`) {
			t.Errorf("a request over the limit = %d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	if w := ask(t, s, "GET "+path, "a", ""); w.Code != http.StatusOK {
		t.Errorf("the request after the faults = %d", w.Code)
	}
	s.Fail(apis.Fault{Provider: "google", Status: 500, After: true})
	if w := ask(t, s, "POST /google/tasks/v1/lists/@default/tasks", "a", `{"title":"done all the same"}`); w.Code != 500 {
		t.Errorf("a lost answer = %d", w.Code)
	}
	if w := ask(t, s, "GET "+path, "a", ""); !strings.Contains(w.Body.String(), "done all the same") {
		t.Errorf("after a lost answer: %s", w.Body)
	}
	for _, body := range []string{`{}`, `{"provider":"other","status":500}`, `{"provider":"google","status":200}`, `{`} {
		if w := ask(t, s, "POST /faults", "", body); w.Code != 400 {
			t.Errorf("POST /faults %s = %d", body, w.Code)
		}
	}
}
