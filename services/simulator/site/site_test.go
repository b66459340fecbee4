package site_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"signalbox.dev/services/simulator/site"
)

func TestSite(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(site.Handler())
	defer s.Close()
	for _, test := range []struct {
		path    string
		form    url.Values
		status  int
		has, no string
	}{
		{"/", nil, 200, `<a href="/books/walden">Walden</a>`, ""},
		{"/?q=TEA", nil, 200, "The Book of Tea", "Walden"},
		{"/?q=<script>", nil, 200, "No book has that", "<script>"},
		{"/books/walden", nil, 200, "Reserve it", "reserved"},
		{"/books/walden", url.Values{"name": {"<b>Ann"}}, 200, "reserved for &lt;b&gt;Ann", "<b>"},
		{"/books/none", nil, 404, "no such page", ""},
		{"/books/walden", url.Values{"name": {strings.Repeat("x", 1<<20)}}, 200, "Reserve it", "xxx"},
	} {
		res, err := http.Get(s.URL + strings.ReplaceAll(test.path, "<script>", url.QueryEscape("<script>")))
		if test.form != nil {
			res, err = http.PostForm(s.URL+test.path, test.form)
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != test.status || !strings.Contains(string(body), test.has) || test.no != "" && strings.Contains(string(body), test.no) {
			t.Errorf("%s is %d, %v, %s; want %d with %q and without %q", test.path, res.StatusCode, err, body, test.status, test.has, test.no)
		}
	}
}
