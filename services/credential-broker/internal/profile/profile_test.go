package profile_test

import (
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/profile"
)

func shipped(t *testing.T) *profile.Set {
	t.Helper()
	s, err := profile.Load("1.2.3", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestShipped(t *testing.T) {
	t.Parallel()
	s := shipped(t)
	if diff := cmp.Diff([]string{"anthropic-api-key", "anthropic-oauth", "generic", "generic-header", "github", "google", "mcp", "notion", "openai", "openrouter"}, s.Names()); diff != "" {
		t.Errorf("Names() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"anthropic", "github", "google", "notion", "openai", "openrouter"}, s.Providers()); diff != "" {
		t.Errorf("Providers() (-want +got):\n%s", diff)
	}
	for _, name := range s.Names() {
		p, _ := s.Get(name)
		if got, want := p.Headers.Set["User-Agent"], "signalbox/1.2.3"; got != want {
			t.Errorf("%s sets User-Agent %q, want %q", name, got, want)
		}
	}
	p, ok := s.For("anthropic")
	if !ok || p.Name != "anthropic-api-key" {
		t.Fatalf("For(anthropic) = %v, %v, want anthropic-api-key", p, ok)
	}
	r := p.Route("/v1/messages")
	want := profile.Route{
		Path: "/v1/messages", Wait: 10 * time.Minute, WaitStream: 3 * time.Minute,
		Stream: &profile.Stream{Events: profile.Typed, Preamble: []string{"message_start", "ping"}, Terminal: []string{"message_stop"}, Error: []string{"error"}, Usage: []string{"message_start", "message_delta"}},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("Route(/v1/messages) (-want +got):\n%s", diff)
	}
	if r := p.Route("/v1/models/claude"); r.Wait != 30*time.Second || r.Stream != nil {
		t.Errorf("Route(/v1/models/claude) = %+v, want the wildcard's 30s", r)
	}
	if r := p.Route("/v1/messages/batches"); r.Wait != 5*time.Minute || r.Stream != nil {
		t.Errorf("Route(/v1/messages/batches) = %+v, want the default", r)
	}
}

func TestPathAndBase(t *testing.T) {
	t.Parallel()
	s := shipped(t)
	tests := []struct{ profile, own, path, want string }{
		{"anthropic-api-key", "", "/v1/models", "https://api.anthropic.com/v1/models"},
		{"anthropic-api-key", "https://proxy.example/x/v1/", "/v1/models", "https://proxy.example/x/v1/models"},
		{"openai", "", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"},
		{"openai", "", "/chat/completions", "https://api.openai.com/v1/chat/completions"},
		{"openai", "", "/v10/models", "https://api.openai.com/v1/v10/models"},
		{"openai", "http://127.0.0.1:11434/v1", "/v1/models", "http://127.0.0.1:11434/v1/models"},
		{"openrouter", "", "/api/v1/chat/completions", "https://openrouter.ai/api/v1/chat/completions"},
		{"openrouter", "", "/v1/chat/completions", "https://openrouter.ai/api/v1/chat/completions"},
		{"openai", "http://127.0.0.1:11434", "/v1/chat/completions", "http://127.0.0.1:11434/v1/chat/completions"},
		{"openai", "http://127.0.0.1:11434", "/chat/completions", "http://127.0.0.1:11434/chat/completions"},
		{"openai", "https://api.example/api/paas/v4", "/v1/chat/completions", "https://api.example/api/paas/v4/chat/completions"},
		{"openai", "https://api.example/api/paas/v4", "/v1/embeddings", "https://api.example/api/paas/v4/embeddings"},
		{"openrouter", "https://gateway.example/x", "/api/v1/chat/completions", "https://gateway.example/x/chat/completions"},
		{"openrouter", "https://gateway.example", "/api/v1/credits", "https://gateway.example/api/v1/credits"},
		{"generic", "https://api.example", "/v1/chat/completions", "https://api.example/v1/chat/completions"},
		{"generic", "https://api.example", "/v1/charges", "https://api.example/v1/charges"},
		{"generic", "https://api.example", "/v2/charges", "https://api.example/v2/charges"},
		{"generic", "https://api.example/stripe", "/v1/charges", "https://api.example/stripe/v1/charges"},
		{"generic", "https://api.example/v1", "/v1/charges", "https://api.example/v1/charges"},
		{"generic", "https://api.example/v1", "/charges", "https://api.example/v1/charges"},
		{"generic-header", "https://api.example", "/v1", "https://api.example/v1"},
	}
	for _, tt := range tests {
		p, _ := s.Get(tt.profile)
		var own *url.URL
		if tt.own != "" {
			var err error
			if own, err = url.Parse(tt.own); err != nil {
				t.Fatal(err)
			}
		}
		base := p.Base(own)
		below, route := p.Below(base, tt.path)
		if got := base.String() + below; got != tt.want {
			t.Errorf("%s: Base(%q) + Below(%q) = %q, want %q", tt.profile, tt.own, tt.path, got, tt.want)
		}
		if chat := strings.HasSuffix(tt.path, "/chat/completions"); chat != (route.Stream != nil) {
			t.Errorf("%s: Base(%q) + Below(%q) is known as %+v", tt.profile, tt.own, tt.path, route)
		}
	}
	if p, _ := s.Get("generic"); p.Base(nil) != nil {
		t.Errorf("generic has a base URL of its own: %v", p.Base(nil))
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	s, err := profile.Load("7", fstest.MapFS{"a.yaml": {Data: []byte(`
name: a
dialect: anthropic
auth: {header: authorization, scheme: Bearer}
headers:
  set: {user-agent: "signalbox/${version}", x-app: "a b"}
  append: {anthropic-beta: "two, three"}
  remove: [x-stainless-*, X-Api-Key]
`)}})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.Get("a")
	h := http.Header{}
	for k, v := range map[string]string{"user-agent": "sdk", "x-stainless-lang": "js", "X-Stainless-OS": "x", "x-api-key": "k", "anthropic-beta": "one, two", "accept": "*/*"} {
		h.Set(k, v)
	}
	p.Apply(h, "s3cret")
	want := http.Header{
		"User-Agent": {"signalbox/7"}, "X-App": {"a b"}, "Anthropic-Beta": {"one,two,three"}, "Accept": {"*/*"},
		"Authorization": {"Bearer s3cret"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("Apply (-want +got):\n%s", diff)
	}
	h = http.Header{}
	headered, _ := shipped(t).Get("generic-header")
	headered.Apply(h, "s3cret")
	if diff := cmp.Diff(http.Header{"User-Agent": {"signalbox/1.2.3"}, "X-Api-Key": {"s3cret"}}, h); diff != "" {
		t.Errorf("Apply of generic-header (-want +got):\n%s", diff)
	}
	bare := http.Header{}
	p.Apply(bare, "")
	if _, ok := bare["Authorization"]; ok {
		t.Errorf("Apply without a secret sends Authorization %q", bare["Authorization"])
	}
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	const good = "name: a\ndialect: openai\nauth: {header: x-key}\n"
	tests := []struct{ name, text, want string }{
		{"not YAML", "name: [", "a.yaml:"},
		{"empty", "", "a.yaml:1: want exactly one YAML document"},
		{"a comment", "# nothing\n", "a.yaml:1: want exactly one YAML document"},
		{"two documents", good + "---\n" + good, "a.yaml:4: want exactly one YAML document"},
		{"unknown field", good + "colour: red\n", `a.yaml:4: unknown field "colour"`},
		{"unknown nested field", good + "routes:\n  - path: /x\n    speed: 1\n", `a.yaml:6: unknown field "speed"`},
		{"duplicate field", good + "name: b\n", "a.yaml:4: "},
		{"not fields", "- a\n", "a.yaml:1: want fields with values"},
		{"no list", good + "routes: 7\n", "a.yaml:4: routes: want a list"},
		{"no list of texts", good + "headers:\n  remove: a\n", "a.yaml:5: headers.remove: want a list"},
		{"no text", good + "routes:\n  - path: [x]\n", "a.yaml:5: routes[0].path: want a text"},
		{"no text in a list", good + "mounts:\n  - /a\n  - {b: c}\n", "a.yaml:6: mounts[1]: want a text"},
		{"no fields", good + "routes:\n  - path: /x\n  - /y\n", "a.yaml:6: routes[1]: want fields with values"},
		{"no fields below", good + "routes:\n  - path: /x\n    stream: chat\n", "a.yaml:6: routes[0].stream: want fields with values"},
		{"no texts by name", good + "headers:\n  set: [a]\n", "a.yaml:5: headers.set: want fields with values"},
		{"nothing", good + "routes:\n  - path: /x\n    stream:\n", "a.yaml:6: routes[0].stream: it has no value: give it one, or leave it out"},
		{"null", good + "base_url: null\n", "a.yaml:4: base_url: it has no value"},
		{"name", "name: A b\ndialect: openai\nauth: {header: x}\n", `a.yaml:1: name: "A b" is not a name`},
		{"no name", "dialect: openai\nauth: {header: x}\n", `a.yaml:1: name: "" is not a name`},
		{"dialect", "name: a\ndialect: latin\nauth: {header: x}\n", `a.yaml:2: dialect: "latin" is unknown: use anthropic, openai, google, notion or github`},
		{"auth header", "name: a\ndialect: openai\nauth:\n  header: 'a b'\n", `a.yaml:4: auth.header: "a b" is not the name of a header`},
		{"auth parameter", "name: a\ndialect: openai\nauth: {header: x, params: [key, a=b]}\n", `auth.params[1]: "a=b" is not the name of a query's parameter`},
		{"urls", good + "routes:\n  - {path: /x, urls: [a, b.c]}\n", `routes[0].urls[1]: "b.c" is not the name of a member`},
		{"urls and body", good + "routes:\n  - {path: /x, urls: [a], body: messages}\n", `routes[0].urls: set body or urls, not both`},
		{"no auth", "name: a\ndialect: openai\n", `auth.header: "" is not the name of a header`},
		{"reserved header", good + "headers:\n  set:\n    host: evil\n", "a.yaml:6: headers.set.host: Host is set by the proxy"},
		{"own header", good + "headers:\n  set:\n    X-Key: evil\n", "a.yaml:6: headers.set.X-Key: the credential's own header"},
		{"header twice", good + "headers:\n  set:\n    X-A: '1'\n    x-a: '2'\n", "a.yaml:7: headers.set.x-a: X-A is already given"},
		{"header appended twice", good + "headers:\n  append:\n    X-A: '1'\n    x-a: '2'\n", "a.yaml:7: headers.append.x-a: X-A is already given"},
		{"header set and appended", good + "headers:\n  set: {X-A: '1'}\n  append:\n    x-a: '2'\n", "a.yaml:7: headers.append.x-a: X-A is already given"},
		{"header injection", good + "headers:\n  set:\n    x-a: \"b\\r\\nx: y\"\n", "headers.set.x-a: a header's value must be printable ASCII"},
		{"variable", good + "headers:\n  set:\n    x-a: ${home}\n", "the only variable is ${version}"},
		{"remove", good + "headers:\n  remove: ['a*b']\n", `headers.remove[0]: "a*b" is not the name`},
		{"base URL", good + "base_url: ftp://x\n", "a.yaml:4: base_url: the base URL begins with \"ftp:\""},
		{"userinfo", good + "base_url: https://u:p@x/\n", "a.yaml:4: base_url: the base URL must not contain a user or password"},
		{"query", good + "base_url: https://x/?a=b\n", "base_url: the base URL must end with the path"},
		{"question mark", good + "base_url: https://x/?\n", "base_url: the base URL must end with the path"},
		{"base URL's port", good + "base_url: https://x.example:99999\n", "a.yaml:4: base_url: the base URL's port must be a number"},
		{"base URL's host", good + "base_url: https://bücher.example\n", "a.yaml:4: base_url: the base URL's host must consist of ASCII"},
		{"base URL with dots", good + "base_url: https://x.example/a/../b\n", "a.yaml:4: base_url: the base URL must not hold .. as a segment"},
		{"mount with dots", good + "mounts: [/a/../b]\n", `mounts[0]: "/a/../b" is not a path`},
		{"mount", good + "mounts:\n  - /v1\n  - v1/\n", `a.yaml:6: mounts[1]: "v1/" is not a path`},
		{"wait", good + "routes:\n  - path: /x\n    wait: soon\n", `a.yaml:6: routes[0].wait: "soon" is not a time`},
		{"wait too long", good + "routes:\n  - path: /x\n    wait: 100h\n", "at most 1h0m0s"},
		{"route path", good + "routes:\n  - path: x\n", `a.yaml:5: routes[0].path: "x" is not a path`},
		{"route path with dots", good + "routes:\n  - path: /a/../b\n", `a.yaml:5: routes[0].path: "/a/../b" is not a path`},
		{"route path with a dot", good + "routes:\n  - path: /a/./*\n", `a.yaml:5: routes[0].path: "/a/./*" is not a path`},
		{"route twice", good + "routes:\n  - path: /x\n  - path: /x\n", `a.yaml:6: routes[1].path: "/x" already has a route`},
		{"events", good + "routes:\n  - path: /x\n    stream: {events: other}\n", `a.yaml:6: routes[0].stream.events: "other" is not a form`},
		{"typed without end", good + "routes:\n  - path: /x\n    stream:\n      events: typed\n", "routes[0].stream.terminal: name the events that end a stream"},
		{"chat with names", good + "routes:\n  - path: /x\n    stream: {events: chat, error: [e]}\n", "chat chunks have no names"},
		{"preamble that ends", good + "routes:\n  - path: /x\n    stream: {events: typed, preamble: [a, b], terminal: [b]}\n", `a.yaml:6: routes[0].stream.preamble[1]: "b" is also in terminal`},
		{"preamble that fails", good + "routes:\n  - path: /x\n    stream: {events: typed, preamble: [a], terminal: [b], error: [a]}\n", `a.yaml:6: routes[0].stream.preamble[0]: "a" is also in error`},
		{"event name", good + "routes:\n  - path: /x\n    stream: {events: typed, terminal: ['a b']}\n", `routes[0].stream.terminal[0]: "a b" is not the name of an event`},
		{"prefix", good + "tool_prefix: 'a b'\nroutes:\n  - {path: /x, body: messages}\n", `a.yaml:4: tool_prefix: "a b" cannot begin the name of a tool`},
		{"prefix without a place", good + "tool_prefix: mcp_\nroutes:\n  - path: /x\n", "a.yaml:4: tool_prefix: it would change nothing, because no route has body: messages"},
		{"system without a place", good + "system:\n  first: [x]\n", "a.yaml:5: system: it would change nothing, because no route has body: messages"},
		{"body", good + "tool_prefix: p\nroutes:\n  - path: /x\n    body: chat\n", `a.yaml:7: routes[0].body: bodies of the form "chat" cannot be changed: use messages`},
		{"empty block", good + "system:\n  first:\n    - a\n    - ' '\nroutes:\n  - {path: /x, body: messages}\n", "a.yaml:7: system.first[1]: a block of the system prompt must contain text"},
		{"word", good + "system:\n  words:\n    - {from: '/x', to: b}\nroutes:\n  - {path: /x, body: messages}\n", `a.yaml:6: system.words[0].from: "/x" is not a word`},
		{"long word", good + "system:\n  words:\n    - {from: x, to: " + strings.Repeat("y", 201) + "}\nroutes:\n  - {path: /x, body: messages}\n", "a.yaml:6: system.words[0].to: it is not UTF-8, or longer than 200 bytes"},
		{"order of problems", good + "routes:\n  - path: /x\n    stream: {events: typed, usage: ['a b'], terminal: ['a b'], error: ['a b']}\n  - {path: y}\n", "stream.error[0]: \"a b\" is not the name of an event\na.yaml:6: routes[0].stream.terminal[0]: \"a b\" is not the name of an event\na.yaml:6: routes[0].stream.usage[0]: \"a b\" is not the name of an event\na.yaml:7: routes[1].path"},
		{"case", good + "system:\n  words:\n    - from: x\n      case: upper\nroutes:\n  - {path: /x, body: messages}\n", `a.yaml:7: system.words[0].case: "upper" is not a rule`},
		{"query", good + "routes:\n  - path: /x\n    query: {'a b': c}\n", `routes[0].query.a b: "a b" is not the name of a parameter`},
		{"usage", good + "usage:\n  at: [a..b]\n", `a.yaml:5: usage.at[0]: "a..b" is not the name of a member`},
		{"usage nowhere", good + "usage:\n  input: [a]\n", "usage.at: name the members"},
		{"usage of chat", good + "routes:\n  - path: /x\n    stream: {events: chat, usage: [e]}\n", "chat chunks have no names"},
		{"limit", good + "limits:\n  - {remaining: 'a b'}\n", `a.yaml:5: limits[0].remaining: "a b" is not the name of a header`},
		{"status without a word", good + "limits:\n  - {status: x-s, reset: x-r}\n", "limits[0].used: set status and used together"},
		{"a word without status", good + "limits:\n  - {used: rejected, reset: x-r}\n", "limits[0].used: set status and used together"},
		{"status and remaining", good + "limits:\n  - {status: x-s, used: rejected, remaining: x-r}\n", "limits[0].status: a limit has either remaining or status"},
		{"status", good + "limits:\n  - {status: 'a b', used: rejected}\n", `limits[0].status: "a b" is not the name of a header`},
		{"empty limit", good + "limits:\n  - {}\n", "limits[0]: name the headers"},
		{"too large", good + "# " + strings.Repeat("x", 70_000), "over the limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := profile.Load("1", fstest.MapFS{"a.yaml": {Data: []byte(tt.text)}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load(%q) = %v, want an error with %q", tt.text, err, tt.want)
			}
		})
	}
}

func TestLoadSeveral(t *testing.T) {
	t.Parallel()
	file := func(name, extra string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("name: " + name + "\ndialect: openai\nauth: {header: x-key}\n" + extra)}
	}
	_, err := profile.Load("1", fstest.MapFS{"a.yaml": file("one", ""), "b.yaml": file("one", ""), "c.yaml": file("Two", "")})
	if err == nil || !strings.Contains(err.Error(), `b.yaml:1: name: "one" is taken by a.yaml`) || !strings.Contains(err.Error(), "c.yaml:1: name") {
		t.Errorf("Load of a directory = %v, want both problems", err)
	}
	own := fstest.MapFS{"mine.yaml": file("openai", "default_for: openai\nbase_url: https://mine.example\n"), "readme.txt": {Data: []byte("not a profile")}}
	s, err := profile.Load("1", profile.Shipped(), own)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := s.For("openai"); p.BaseURL.Host != "mine.example" {
		t.Errorf("For(openai) is %v, want the operator's own", p.BaseURL)
	}
	if _, err := profile.Load("1", profile.Shipped(), fstest.MapFS{"x.yaml": file("x", "default_for: openai\n")}); err == nil || err.Error() != "x.yaml:4: default_for: the default of openai is the profile openai already (openai.yaml:5)" {
		t.Errorf("Load of two defaults = %v, want an error", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := profile.Open("1", filepath.Join(dir, "gone")); err == nil || !strings.Contains(err.Error(), "folder of request profiles") {
		t.Errorf("Open of a folder that is not there = %v, want an error", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine.yaml", "name: mine\ndialect: openai\nauth: {header: x-key}\n")
	if _, err := profile.Open("1", filepath.Join(dir, "mine.yaml")); err == nil {
		t.Error("Open of a file gives no error")
	}
	s, err := profile.Open("1", dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Get("mine"); !ok || len(s.Names()) != 11 {
		t.Errorf("Open gives %v, want mine beside the shipped ones", s.Names())
	}
	write("other.yml", "name: other\n")
	if _, err := profile.Open("1", dir); err == nil || !strings.Contains(err.Error(), "other.yml: its name must end with .yaml") {
		t.Errorf("Open with other.yml = %v, want an error", err)
	}
}

func TestAddQuery(t *testing.T) {
	t.Parallel()
	p, _ := shipped(t).Get("anthropic-oauth")
	r := p.Route("/v1/messages")
	for in, want := range map[string]string{
		"": "beta=true", "beta=true": "beta=true", "beta=true&a=b": "beta=true&a=b", "a=%20b&c": "a=%20b&c&beta=true",
		"beta=false&a=1": "a=1&beta=true", "be%74a=0": "beta=true",
	} {
		if got := r.AddQuery(in); got != want {
			t.Errorf("AddQuery(%q) = %q, want %q", in, got, want)
		}
	}
	if r := p.Route("/v1/models"); r.AddQuery("a=b") != "a=b" {
		t.Errorf("a route without parameters adds some: %q", r.AddQuery("a=b"))
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	s, err := profile.Load("1", fstest.MapFS{"a.yaml": {Data: []byte("name: a\ndialect: openai\nauth: {header: x-key}\nlimits:\n  - {remaining: r1, reset: t1}\n  - {remaining: r2, reset: t2}\n  - {reset: t3}\n  - {status: s4, used: rejected, reset: t4}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.Get("a")
	now := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name      string
		header    []string
		want      time.Duration
		exhausted bool
	}{
		{"nothing", nil, 0, false},
		{"something left", []string{"R1", "3", "T1", "10"}, 0, false},
		{"seconds", []string{"R1", "0", "T1", "10"}, 10 * time.Second, true},
		{"the later one", []string{"R1", "0", "T1", "6m0s", "R2", "0", "T2", "20ms"}, 6 * time.Minute, true},
		{"only what is used up", []string{"R1", "5", "T1", "6m0s", "R2", "0", "T2", "1s"}, time.Second, true},
		{"a time", []string{"T3", "2025-01-02T03:05:05Z"}, time.Minute, false},
		{"seconds since 1970", []string{"T3", strconv.FormatInt(now.Unix()+90, 10)}, 90 * time.Second, false},
		{"milliseconds since 1970", []string{"T3", strconv.FormatInt(now.UnixMilli()+2500, 10)}, 2500 * time.Millisecond, false},
		{"long ago", []string{"T3", "2020-01-01T00:00:00Z"}, 0, false},
		{"far away", []string{"T3", "2099-01-01T00:00:00Z"}, 7 * 24 * time.Hour, false},
		{"a status", []string{"S4", "rejected", "T4", "10"}, 10 * time.Second, true},
		{"another status", []string{"S4", "allowed", "T4", "10"}, 0, false},
		{"no status", []string{"T4", "10"}, 0, false},
		{"nonsense", []string{"R1", "none", "T1", "10", "T3", "NaN"}, 0, false},
	}
	for _, tt := range tests {
		h := http.Header{}
		for i := 0; i < len(tt.header); i += 2 {
			h.Set(tt.header[i], tt.header[i+1])
		}
		if got, ex := p.Reset(h, now), p.Exhausted(h); got != tt.want || ex != tt.exhausted {
			t.Errorf("%s: Reset = %v, Exhausted = %v, want %v, %v", tt.name, got, ex, tt.want, tt.exhausted)
		}
	}
}

func TestAnthropicOAuth(t *testing.T) {
	t.Parallel()
	p, _ := shipped(t).Get("anthropic-oauth")
	h := http.Header{}
	for k, v := range map[string]string{"x-stainless-lang": "js", "X-Stainless-Retry-Count": "0", "x-api-key": "k", "anthropic-beta": "mine-1, interleaved-thinking-2025-05-14", "user-agent": "sdk"} {
		h.Set(k, v)
	}
	p.Apply(h, "tok")
	want := http.Header{
		"User-Agent": {"signalbox/1.2.3"}, "Authorization": {"Bearer tok"},
		"Anthropic-Beta": {"mine-1,interleaved-thinking-2025-05-14,oauth-2025-04-20"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("Apply (-want +got):\n%s", diff)
	}
	if p.Route("/v1/messages").Messages == nil || p.Route("/v1/messages/count_tokens").Messages == nil || p.Route("/v1/models").Messages != nil {
		t.Error("the routes with bodies to change are not messages and count_tokens")
	}
	if key, _ := shipped(t).For("anthropic"); key.Route("/v1/messages").Messages != nil {
		t.Error("the API key's profile changes bodies")
	}
}

func FuzzLoad(f *testing.F) {
	files, err := fs.Glob(profile.Shipped(), "*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(profile.Shipped(), name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := profile.Load("1", fstest.MapFS{"a.yaml": {Data: text}})
		if (s == nil) == (err == nil) {
			t.Fatalf("Load(%q) = %v, %v", text, s, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "a.yaml:") && !strings.HasPrefix(err.Error(), "profile ") {
			t.Fatalf("Load(%q) = %v, want the file's name first", text, err)
		}
	})
}
