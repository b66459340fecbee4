package profile

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/credential-broker/internal/transform"
	"signalbox.dev/services/credential-broker/internal/usage"
)

// Dialect is the protocol family that a provider speaks.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic"
	OpenAI    Dialect = "openai"
	Google    Dialect = "google"
	Notion    Dialect = "notion"
	GitHub    Dialect = "github"
	MCP       Dialect = "mcp" // the Model Context Protocol: JSON-RPC
)

// Models reports whether the dialect is spoken by model providers.
func (d Dialect) Models() bool { return d == Anthropic || d == OpenAI }

var dialects = []Dialect{Anthropic, OpenAI, Google, Notion, GitHub, MCP}

// Events is the form of a stream's events.
type Events string

// The forms of events.
const (
	// Typed events have a name: the event line's, or else the data's member "type".
	Typed Events = "typed"
	// Chat events are chunks of OpenAI's chat completions, ended by [DONE].
	Chat Events = "chat"
)

// Stream describes the events of one route.
type Stream struct {
	Events Events `yaml:"events"`
	// Preamble names typed events that say nothing yet: the answer can still be discarded
	// after them.
	Preamble []string `yaml:"preamble"`
	// Terminal names typed events after which the answer is whole.
	Terminal []string `yaml:"terminal"`
	// Error names typed events that report a failure.
	Error []string `yaml:"error"`
	// Usage names typed events that can count tokens. A chat completion counts them when it
	// finishes.
	Usage []string `yaml:"usage"`
}

// Route is what a profile knows about one path.
type Route struct {
	Path string `yaml:"path"`
	// Query is added to the URL's query.
	Query map[string]string `yaml:"query"`
	// URLs are members of an answer, or of the elements of its list "data", that hold URLs
	// which clients follow.
	URLs []string `yaml:"urls"`
	// Messages edits the route's bodies; nil leaves them as they are.
	Messages *transform.Messages `yaml:"-"`
	// Wait limits the time until the answer's headers arrive, WaitStream the same if the
	// request asks for a stream.
	Wait       time.Duration `yaml:"-"`
	WaitStream time.Duration `yaml:"-"`
	// Stream is nil if nothing is known about the route's events.
	Stream *Stream `yaml:"stream"`
}

// Profile is one loaded profile, which must not be changed.
type Profile struct {
	Name       string  `yaml:"name"`
	DefaultFor string  `yaml:"default_for"`
	Dialect    Dialect `yaml:"dialect"`
	// BaseURL is nil if every account brings its own.
	BaseURL *url.URL `yaml:"-"`
	// Mounts are path prefixes that callers write for the base URL (Below); the first is the
	// provider's own.
	Mounts   []string `yaml:"mounts"`
	TrimBase string   `yaml:"trim_base"`
	Auth     Auth     `yaml:"auth"`
	Headers  Headers  `yaml:"headers"`
	// Usage says where answers count tokens; nil if they do not.
	Usage  *usage.Places `yaml:"usage"`
	Limits []Limit       `yaml:"limits"`
	Routes []Route       `yaml:"-"`
	// Check is a request to try a credential with; nil if none is known.
	Check *Check `yaml:"check"`

	defaultAt string // file and line of default_for, for errors
}

// Check is a request without cost that a provider answers with success if the credential is
// valid.
type Check struct {
	Path    string            `yaml:"path"`    // behind the first mount
	Headers map[string]string `yaml:"headers"` // that callers send themselves
}

// Auth says where the credential goes.
type Auth struct {
	Header string `yaml:"header"` // canonical
	Scheme string `yaml:"scheme"` // without the space; may be empty
	// Params are query parameters in which the provider accepts a credential as well.
	Params []string `yaml:"params"`
}

// Param returns the first of Params in a raw query; empty if there is none.
func (a *Auth) Param(raw string) string {
	if len(a.Params) == 0 || raw == "" {
		return ""
	}
	for pair := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil && slices.Contains(a.Params, plain) {
			return plain
		}
	}
	return ""
}

// Headers are the changes to a request's headers. Names are canonical, except for the * at
// the end of a name to remove. Append adds entries to comma-separated lists.
type Headers struct {
	Set    map[string]string `yaml:"set"`
	Append map[string]string `yaml:"append"`
	Remove []string          `yaml:"remove"`
}

// Route returns what is known about path, which is below the base URL: the longest match, or
// a route without stream rules.
func (p *Profile) Route(path string) Route {
	r, _ := p.route(path)
	return r
}

// route is Route; named reports whether the profile names the path.
func (p *Profile) route(path string) (best Route, named bool) {
	best = Route{Path: path, Wait: defaultWait, WaitStream: defaultWait}
	length := -1
	for _, r := range p.Routes {
		prefix, open := strings.CutSuffix(r.Path, "*")
		if path == r.Path && !open {
			return r, true
		}
		if open && strings.HasPrefix(path, prefix) && len(prefix) > length {
			best, length = r, len(prefix)
		}
	}
	return best, length >= 0
}

// AddQuery returns a raw query with the route's parameters. A parameter that the caller sent
// with the same value stays where it is; one with another value is replaced.
func (r *Route) AddQuery(raw string) string {
	if len(r.Query) == 0 {
		return raw
	}
	var pairs []string
	if raw != "" {
		pairs = strings.Split(raw, "&")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Query)) {
		pair := name + "=" + url.QueryEscape(r.Query[name])
		if slices.Contains(pairs, pair) {
			continue
		}
		pairs = slices.DeleteFunc(pairs, func(have string) bool {
			have, _, _ = strings.Cut(have, "=")
			plain, err := url.QueryUnescape(have)
			return err == nil && plain == name
		})
		pairs = append(pairs, pair)
	}
	return strings.Join(pairs, "&")
}

// Below returns the path below an account's base URL for a path that the caller wrote behind
// the provider's name, and what is known about it. A mount at its beginning stands for the
// base URL if that ends with the mount. If the base URL has another path (/api/paas/v4), the
// mount stands for it on the routes that the profile names, since their API begins there;
// otherwise the mount is part of the path.
func (p *Profile) Below(base *url.URL, path string) (string, Route) {
	for _, mount := range p.Mounts {
		rest, ok := strings.CutPrefix(path, mount)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		route, named := p.route(rest)
		switch {
		case strings.HasSuffix(base.Path, mount), named && base.Path != "":
			return rest, route
		case named:
			return path, route
		}
		return path, p.Route(path)
	}
	return path, p.Route(path)
}

// Base returns the base URL of an account: its own, without the TrimBase that people add by
// mistake, or else the profile's; nil if there is neither.
func (p *Profile) Base(own *url.URL) *url.URL {
	if own == nil {
		return p.BaseURL
	}
	u := *own
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), p.TrimBase)
	u.RawPath = ""
	return &u
}

// Apply changes a request's headers as the profile says and adds the credential. Without a
// secret no credential header is sent.
func (p *Profile) Apply(h http.Header, secret string) {
	for _, name := range p.Headers.Remove {
		if prefix, open := strings.CutSuffix(name, "*"); open {
			maps.DeleteFunc(h, func(k string, _ []string) bool { return strings.HasPrefix(k, prefix) })
			continue
		}
		h.Del(name)
	}
	for name, value := range p.Headers.Append {
		h.Set(name, merge(append(h.Values(name), value)))
	}
	for name, value := range p.Headers.Set {
		h.Set(name, value)
	}
	if secret == "" {
		return
	}
	if p.Auth.Scheme != "" {
		secret = p.Auth.Scheme + " " + secret
	}
	h.Set(p.Auth.Header, secret)
}

// merge joins comma-separated lists, each entry once.
func merge(lists []string) string {
	var out []string
	for entry := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if entry = strings.TrimSpace(entry); entry != "" && !slices.Contains(out, entry) {
			out = append(out, entry)
		}
	}
	return strings.Join(out, ",")
}

// Set is a collection of profiles.
type Set struct {
	byName     map[string]*Profile
	byProvider map[string]*Profile
}

// Get returns the profile of that name.
func (s *Set) Get(name string) (*Profile, bool) {
	p, ok := s.byName[name]
	return p, ok
}

// For returns the profile of a provider's accounts that name none.
func (s *Set) For(provider string) (*Profile, bool) {
	p, ok := s.byProvider[provider]
	return p, ok
}

// Label is the provider's name in metrics: its own if a profile is the default for it, or
// else "other", since workspaces name providers as they like.
func (s *Set) Label(provider string) string {
	if _, ok := s.byProvider[provider]; ok {
		return provider
	}
	return "other"
}

// Names returns all profiles' names, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.byName)) }

// Providers returns the providers that have a default profile, sorted.
func (s *Set) Providers() []string { return slices.Sorted(maps.Keys(s.byProvider)) }

//go:embed profiles/*.yaml
var shipped embed.FS

// Shipped returns the profile files that come with the product.
func Shipped() fs.FS {
	sub, err := fs.Sub(shipped, "profiles")
	if err != nil {
		panic(fmt.Sprintf("embedded profiles: %v", err)) // the pattern above is a constant
	}
	return sub
}
