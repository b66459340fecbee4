package profile_test

import (
	"io/fs"
	"net/http"
	"net/url"
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
	if diff := cmp.Diff([]string{"anthropic-api-key", "generic", "openai", "openrouter"}, s.Names()); diff != "" {
		t.Errorf("Names() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"anthropic", "openai", "openrouter"}, s.Providers()); diff != "" {
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
		Stream: &profile.Stream{Events: profile.Typed, Preamble: []string{"message_start", "ping"}, Terminal: []string{"message_stop"}, Error: []string{"error"}},
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
		{"anthropic-api-key", "", "/v1/messages", "https://api.anthropic.com/v1/messages"},
		{"anthropic-api-key", "https://proxy.example/x/v1/", "/v1/messages", "https://proxy.example/x/v1/messages"},
		{"openai", "", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"},
		{"openai", "", "/chat/completions", "https://api.openai.com/v1/chat/completions"},
		{"openai", "", "/v10/models", "https://api.openai.com/v1/v10/models"},
		{"openai", "http://127.0.0.1:11434/v1", "/v1/models", "http://127.0.0.1:11434/v1/models"},
		{"openrouter", "", "/api/v1/chat/completions", "https://openrouter.ai/api/v1/chat/completions"},
		{"openrouter", "", "/v1/chat/completions", "https://openrouter.ai/api/v1/chat/completions"},
		{"generic", "https://api.example", "/v1/chat/completions", "https://api.example/chat/completions"},
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
		if got := p.Base(own).String() + p.Path(tt.path); got != tt.want {
			t.Errorf("%s: Base(%q) + Path(%q) = %q, want %q", tt.profile, tt.own, tt.path, got, tt.want)
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
		{"empty", "", "a.yaml: want exactly one YAML document"},
		{"two documents", good + "---\n" + good, "want exactly one YAML document"},
		{"unknown field", good + "colour: red\n", `a.yaml:4: unknown field "colour"`},
		{"unknown nested field", good + "routes:\n  - path: /x\n    speed: 1\n", `a.yaml:6: unknown field "speed"`},
		{"duplicate field", good + "name: b\n", "a.yaml:4: "},
		{"wrong type", good + "routes: 7\n", "a.yaml:4: "},
		{"name", "name: A b\ndialect: openai\nauth: {header: x}\n", `a.yaml:1: name: "A b" is not a name`},
		{"no name", "dialect: openai\nauth: {header: x}\n", `a.yaml:1: name: "" is not a name`},
		{"dialect", "name: a\ndialect: latin\nauth: {header: x}\n", `a.yaml:2: dialect: "latin" is unknown: use anthropic or openai`},
		{"auth header", "name: a\ndialect: openai\nauth:\n  header: 'a b'\n", `a.yaml:4: auth.header: "a b" is not the name of a header`},
		{"no auth", "name: a\ndialect: openai\n", `auth.header: "" is not the name of a header`},
		{"reserved header", good + "headers:\n  set:\n    host: evil\n", "a.yaml:6: headers.set.host: Host is decided by the proxy"},
		{"own header", good + "headers:\n  set:\n    X-Key: evil\n", "a.yaml:6: headers.set.X-Key: the credential's own header"},
		{"header injection", good + "headers:\n  set:\n    x-a: \"b\\r\\nx: y\"\n", "headers.set.x-a: a header's value is printable ASCII"},
		{"variable", good + "headers:\n  set:\n    x-a: ${home}\n", "the only variable is ${version}"},
		{"remove", good + "headers:\n  remove: ['a*b']\n", `headers.remove[0]: "a*b" is not the name`},
		{"base URL", good + "base_url: ftp://x\n", "a.yaml:4: base_url: want https://host/path"},
		{"userinfo", good + "base_url: https://u:p@x/\n", "a.yaml:4: base_url: it must hold no user or password"},
		{"query", good + "base_url: https://x/?a=b\n", "base_url: it must end with the path"},
		{"mount", good + "mounts:\n  - /v1\n  - v1/\n", `a.yaml:6: mounts[1]: "v1/" is not a path`},
		{"wait", good + "routes:\n  - path: /x\n    wait: soon\n", `a.yaml:6: routes[0].wait: "soon" is not a time`},
		{"wait too long", good + "routes:\n  - path: /x\n    wait: 100h\n", "at most 1h0m0s"},
		{"route path", good + "routes:\n  - path: x\n", `a.yaml:5: routes[0].path: "x" is not a path`},
		{"route twice", good + "routes:\n  - path: /x\n  - path: /x\n", `a.yaml:6: routes[1].path: "/x" has a route already`},
		{"events", good + "routes:\n  - path: /x\n    stream: {events: other}\n", `a.yaml:6: routes[0].stream.events: "other" is not a form`},
		{"typed without end", good + "routes:\n  - path: /x\n    stream:\n      events: typed\n", "routes[0].stream.terminal: name the events that end a stream"},
		{"chat with names", good + "routes:\n  - path: /x\n    stream: {events: chat, error: [e]}\n", "chat chunks have no names"},
		{"event name", good + "routes:\n  - path: /x\n    stream: {events: typed, terminal: ['a b']}\n", `routes[0].stream.terminal[0]: "a b" is not the name of an event`},
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
	if err == nil || !strings.Contains(err.Error(), `"one" is taken by a.yaml`) || !strings.Contains(err.Error(), "c.yaml:1: name") {
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
	if _, err := profile.Load("1", profile.Shipped(), fstest.MapFS{"x.yaml": file("x", "default_for: openai\n")}); err == nil || !strings.Contains(err.Error(), "default_for") {
		t.Errorf("Load of two defaults = %v, want an error", err)
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
