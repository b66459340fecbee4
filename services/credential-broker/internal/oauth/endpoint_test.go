package oauth

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, kind, in, code string
		ok                   bool
		want                 string // access, refresh and life, where there are tokens
	}{
		{"as the standard says", "application/json", `{"access_token":"a","refresh_token":"r","expires_in":3600}`, "", true, "a r 1h0m0s"},
		{"a number in quotes", "application/json", `{"access_token":"a","expires_in":"28800"}`, "", true, "a  8h0m0s"},
		{"no life", "application/json", `{"access_token":"a","expires_in":null,"refresh_token":null}`, "", true, "a  0s"},
		{"a life that is none", "application/json", `{"access_token":"a","expires_in":-5}`, "", true, "a  0s unclear"},
		{"a life of nothing", "application/json", `{"access_token":"a","expires_in":"0"}`, "", true, "a  0s unclear"},
		{"a life that is no number", "application/json", `{"access_token":"a","expires_in":"1h"}`, "", true, "a  0s unclear"},
		{"a life in a list", "application/json", `{"access_token":"a","expires_in":[3600]}`, "", true, "a  0s unclear"},
		{"a life that is over at once", "application/json", `{"access_token":"a","expires_in":0.0001}`, "", true, "a  0s unclear"},
		{"a short life", "application/json", `{"access_token":"a","expires_in":2}`, "", true, "a  10s"},
		{"a life with a space", "application/json", `{"access_token":"a","expires_in":"3600 "}`, "", true, "a  1h0m0s"},
		{"a form", "application/x-www-form-urlencoded; charset=utf-8", `access_token=a&refresh_token=r&expires_in=60`, "", true, "a r 1m0s"},
		{"an error in a form", "application/x-www-form-urlencoded", `error=bad_refresh_token&error_description=x`, "bad_refresh_token", true, ""},
		{"an error", "application/json", `{"error":"invalid_grant","error_description":"refresh-secret"}`, "invalid_grant", true, ""},
		{"an error as an object", "application/json", `{"type":"error","error":{"type":"invalid_request_error","message":"refresh-secret"}}`, "invalid_request_error", true, ""},
		{"a code that quotes", "application/json", `{"error":"token refresh-secret is bad"}`, "error", true, ""},
		{"an error that is a number", "application/json", `{"error":7}`, "error", true, ""},
		{"no error, as a word", "application/json", `{"access_token":"a","error":false,"expires_in":60}`, "", true, "a  1m0s"},
		{"no error, as nothing", "application/json", `{"access_token":"a","error":null,"expires_in":60}`, "", true, "a  1m0s"},
		{"no error, as an empty text", "application/json", `{"access_token":"a","error":"","expires_in":60}`, "", true, "a  1m0s"},
		{"no error, as a list", "application/json", `{"access_token":"a","error":[],"expires_in":60}`, "", true, "a  1m0s"},
		{"an error beside a token", "application/json", `{"access_token":"a","error":"invalid_grant"}`, "invalid_grant", true, ""},
		{"behind a byte order mark", "application/json", "\uFEFF" + `{"access_token":"a","expires_in":60}`, "", true, "a  1m0s"},
		{"JSON that is called a form", "application/x-www-form-urlencoded", ` {"access_token":"a","expires_in":60}`, "", true, "a  1m0s"},
		{"no token", "application/json", `{}`, "", true, "?"},
		{"a token that cannot be sent", "application/json", `{"access_token":"a\r\nb"}`, "", true, "?"},
		{"a refresh token that cannot", "application/json", `{"access_token":"a","refresh_token":"é"}`, "", true, "?"},
		{"a token of another kind", "application/json", `{"access_token":{"a":1}}`, "", true, "?"},
		{"no object", "application/json", `["a"]`, "", false, ""},
		{"nothing", "application/json", ``, "", false, ""},
		{"a page", "text/html", `<html>`, "", false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			object, code, ok := decode(http.Header{"Content-Type": {tt.kind}}, []byte(tt.in))
			if code != tt.code || ok != tt.ok {
				t.Errorf("decode() = %q, %v, want %q, %v", code, ok, tt.code, tt.ok)
			}
			if tt.want == "" {
				return
			}
			got, err := tokens(object)
			text := got.Access.Reveal() + " " + got.Refresh.Reveal() + " " + got.Life.String()
			if got.Unclear {
				text += " unclear"
			}
			if (err != nil) != (tt.want == "?") || err == nil && text != tt.want {
				t.Errorf("tokens() = %s, %v, want %s", text, err, tt.want)
			}
		})
	}
}

// FuzzAnswer: whatever a server answers, the tokens can be sent and the errors quote nothing.
func FuzzAnswer(f *testing.F) {
	f.Add("application/json", []byte(`{"access_token":"a","refresh_token":"r","expires_in":1e300}`))
	f.Add("application/x-www-form-urlencoded", []byte(`error=a%20b&access_token=%zz`))
	f.Add("text/html", []byte(`{"error":{"code":"x y"}}`))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		object, code, _ := decode(http.Header{"Content-Type": {kind}}, body)
		if code != "" && !codeForm.MatchString(code) {
			t.Errorf("the code is %q", code)
		}
		got, err := tokens(object)
		if err != nil {
			if _, ok := errors.AsType[*failure](err); !ok {
				t.Errorf("tokens() = %v, want a failure", err)
			}
			return
		}
		if strings.ContainsAny(got.Access.Reveal()+got.Refresh.Reveal(), " \r\n\x00") || got.Access.IsZero() || got.Life < 0 || got.Life > maxTime {
			t.Error("tokens() let through what cannot be sent")
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "999999999": maxWait, "Mon, 02 Jan 2006 15:04:05 GMT": 0} {
		if got := retryAfter(in); got != want {
			t.Errorf("retryAfter(%q) = %s, want %s", in, got, want)
		}
	}
	if got := seconds(json.RawMessage(`"1e999"`)); got != 0 && got != maxTime {
		t.Errorf("seconds(1e999) = %s", got)
	}
}
