package gateway_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestPreconditions changes a document with If-Match.
func TestPreconditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	ask := func(method, path, body, ifMatch string) answer {
		t.Helper()
		return in.send(t, in.request(t, w.owner, method, path, body, func(r *http.Request) {
			if ifMatch != "" {
				r.Header.Set("If-Match", ifMatch)
			}
		}))
	}
	made := ask("POST", "/api/documents", `{"name":"Plan","content":"one"}`, "")
	if made.header.Get("ETag") != `"1"` {
		t.Errorf("a new document has the ETag %q", made.header.Get("ETag"))
	}
	path := "/api/documents/" + call[map[string]object](t, in, w.owner, "POST", "/api/documents", `{"name":"Plan","content":"one"}`, http.StatusCreated)["document"]["id"].(string)
	for _, tt := range []struct {
		body, ifMatch string
		want          int
		etag, says    string
	}{
		{`{"content":"two"}`, `"1"`, http.StatusOK, `"2"`, ""},
		{`{"content":"three"}`, `"1"`, http.StatusPreconditionFailed, "", `"code":"PRECONDITION_FAILED"`},
		{`{"name":"B"}`, `"1"`, http.StatusPreconditionFailed, "", ""},
		{`{"name":"B","content":"three"}`, `"1"`, http.StatusPreconditionFailed, "", ""},
		{`{"content":"three"}`, `W/"2"`, http.StatusPreconditionFailed, "", ""},
		{`{"content":"three"}`, `"abc"`, http.StatusPreconditionFailed, "", ""},
		{`{"content":"three"}`, `2`, http.StatusBadRequest, "", "If-Match: want one ETag"},
		{`{"content":"three"}`, `"1", "2"`, http.StatusBadRequest, "", "If-Match: want one ETag"},
		{`{"content":"three"}`, `*`, http.StatusOK, `"3"`, ""},
		{`{"name":"B"}`, `"3"`, http.StatusOK, `"4"`, ""},
		// Without If-Match the client does not know the content that was renamed.
		{`{"name":"C"}`, ``, http.StatusOK, ``, ""},
		{`{"name":"D","content":"four"}`, `"5"`, http.StatusOK, `"6"`, ""},
		{`{"name":"F"}`, ``, http.StatusOK, ``, ""},
		{`{"content":"five","base":"\"3\""}`, ``, http.StatusOK, `"8"`, `"content":"four, and five from 3"`},
		{`{"content":"five","base":"W/\"3\""}`, ``, http.StatusOK, `"9"`, `from 3"`},
		{`{"content":"five","base":"3"}`, `"9"`, http.StatusOK, `"10"`, `from 3"`},
		{`{"content":"five","base":3}`, ``, http.StatusOK, `"11"`, `from 3"`},
		{`{"content":"five","base":null}`, ``, http.StatusOK, `"12"`, ""},
		{`{"content":"five","base":"three"}`, ``, http.StatusBadRequest, "", "base: want the ETag"},
		{`{"content":"five","base":0}`, ``, http.StatusBadRequest, "", "base: want the ETag"},
		{`{"content":"five","base":{}}`, ``, http.StatusBadRequest, "", "base: want the ETag"},
		{`{"name":"E","base":3}`, ``, http.StatusBadRequest, "", "base: "},
	} {
		got := ask("PATCH", path, tt.body, tt.ifMatch)
		if got.status != tt.want || got.header.Get("ETag") != tt.etag || !strings.Contains(got.body, tt.says) {
			t.Errorf("PATCH %s if %s = %d %q %s, want %d %q with %q", tt.body, tt.ifMatch, got.status, got.header.Get("ETag"), got.body, tt.want, tt.etag, tt.says)
		}
	}
	if got := ask("GET", path, "", ""); got.header.Get("ETag") != `"12"` || !strings.Contains(got.body, `"content":"five"`) {
		t.Errorf("GET = %q %s", got.header.Get("ETag"), got.body)
	}
	for _, tt := range []struct {
		method, path, ifMatch string
		want                  int
	}{
		{"POST", path + "/versions/1/restore", `"11"`, http.StatusPreconditionFailed},
		{"POST", path + "/versions/1/restore", `12`, http.StatusBadRequest},
		{"POST", path + "/versions/1/restore", `"12"`, http.StatusOK},
		{"POST", path + "/versions/13/undo", `"12"`, http.StatusPreconditionFailed},
		{"POST", path + "/versions/13/undo", `"13"`, http.StatusOK},
		{"DELETE", path, `"13"`, http.StatusPreconditionFailed},
		{"DELETE", path, `W/"14"`, http.StatusPreconditionFailed},
		{"DELETE", path, `"14"`, http.StatusOK},
	} {
		got := ask(tt.method, tt.path, "", tt.ifMatch)
		if got.status != tt.want || tt.want == http.StatusPreconditionFailed && !strings.Contains(got.body, `"code":"PRECONDITION_FAILED"`) {
			t.Errorf("%s %s if %s = %d %s, want %d", tt.method, tt.path, tt.ifMatch, got.status, got.body, tt.want)
		}
	}
}
