package oauth_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/services/simulator/authserver"
)

func TestWhoami(t *testing.T) {
	t.Parallel()
	status, answer := http.StatusOK, ""
	var asked http.Header
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header
		if status == http.StatusFound {
			w.Header().Set("Location", "http://127.0.0.1:1/")
		}
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(answer, "TOKEN", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
	}))
	t.Cleanup(front.Close)
	w := newWorld(t, authserver.Settings{}, fmt.Sprintf("connection: {title: Sim, whoami: {url: %s/me, headers: {accept: application/x, x-version: '7'}, at: [a.b, c]}}", front.URL))
	k := w.keeper()
	ref := w.grant(k)
	p, err := w.providers.Get("sim")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, answer string
		status       int
		want         string
		fails        bool
	}{
		{"the first path", `{"a":{"b":"ada@x.example"},"c":"x"}`, 200, "ada@x.example", false},
		{"the second", `{"a":{"b":""},"c":" Ada "}`, 200, "Ada", false},
		{"where the first ends early", `{"a":"b","c":"Ada"}`, 200, "Ada", false},
		{"not a text", `{"a":{"b":7},"c":["x"]}`, 200, "", false},
		{"nothing", `{}`, 200, "", false},
		{"no JSON", `<html>`, 200, "", false},
		{"characters that nobody is to see", `{"c":"A\u0007d\u0000a\n"}`, 200, "Ada", false},
		{"a long name", `{"c":"` + strings.Repeat("é", 300) + `"}`, 200, strings.Repeat("é", 200), false},
		{"the token", `{"a":{"b":"it is TOKEN"},"c":"Ada"}`, 200, "Ada", false},
		{"the token across the end of a long name", `{"a":{"b":"` + strings.Repeat("é", 190) + `TOKEN"},"c":"Ada"}`, 200, "Ada", false},
		{"refused", `{"c":"TOKEN"}`, 403, "", true},
		{"sent elsewhere", `{"c":"Ada"}`, 302, "", true},
	} {
		status, answer = tt.status, tt.answer
		got, err := k.Whoami(t.Context(), ref, p)
		if got != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s: Whoami() = %q, %v, want %q", tt.name, got, err, tt.want)
		}
		if err != nil {
			noTokens(t, "an error", err.Error())
		}
		if asked.Get("Accept") != "application/x" || asked.Get("X-Version") != "7" {
			t.Errorf("%s: the headers are %v", tt.name, asked)
		}
	}
	noTokens(t, "the log", w.log.String())
}
