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
)

// Models reports whether providers of the dialect answer as models do.
func (d Dialect) Models() bool { return d == Anthropic || d == OpenAI }

var dialects = []Dialect{Anthropic, OpenAI, Google, Notion, GitHub}

// Events says how the events of a stream are told apart.
type Events string

// The forms of events.
const (
	// Typed events carry a name: the event line's, else the data's member "type".
	Typed Events = "typed"
	// Chat events are chunks of OpenAI's chat completions, ended by [DONE].
	Chat Events = "chat"
)

// Stream says what to make of the events of one route.
type Stream struct {
	Events Events
	// Preamble are names of typed events that say nothing yet: the answer can
	// still be thrown away after them.
	Preamble []string
	// Terminal are names of typed events after which the answer is whole.
	Terminal []string
	// Error are names of typed events that report a failure.
	Error []string
	// Usage are names of typed events that can count tokens. A chat completion counts
	// them when it finishes.
	Usage []string
}

// Route is what a profile knows of one path.
type Route struct {
	Path string
	// Query is what is added to the URL's query, escaped and sorted.
	Query []Param
	// Messages edits the route's bodies; nil where they stay as they are.
	Messages *transform.Messages
	// URLs are members of an answer, or of the elements of its list "data", in which
	// clients look for where to ask next.
	URLs []string
	// Wait bounds the time until the answer's headers are there, WaitStream the
	// same where the request asks for a stream.
	Wait, WaitStream time.Duration
	// Stream is nil where nothing is known of the route's events.
	Stream *Stream
}

// Param is one parameter of a query, as it stands in a URL.
type Param struct{ Name, Value string }

// Profile is one loaded profile. It is not to be changed.
type Profile struct {
	Name       string
	DefaultFor string
	Dialect    Dialect
	// BaseURL is nil where every account brings its own.
	BaseURL *url.URL
	// Mounts are what callers put before a path for the base URL (Below); the first is
	// the provider's own.
	Mounts   []string
	TrimBase string
	Auth     Auth
	Headers  Headers
	// Usage says where answers count tokens; nil where they do not.
	Usage  *usage.Places
	Limits []Limit
	Routes []Route
	// Check is what a credential can be tried with; nil where nothing is known.
	Check *Check

	defaultAt string // file and line of default_for, for errors
}

// Check is a request that costs nothing and that a provider answers well to whoever has a
// good credential.
type Check struct {
	Path    string            // behind the first mount
	Headers map[string]string // that callers send by themselves
}

// Auth says where the credential goes.
type Auth struct {
	Header string // canonical
	Scheme string // without the space; may be empty
	// Params are parameters of a query in which the provider takes a credential as well.
	Params []string
}

// Param returns the first of Params that a raw query has; empty where it has none.
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

// Headers are the changes to a request's headers. Names are canonical, but for
// the * at the end of a name to remove.
type Headers struct {
	Set    map[string]string
	Append map[string][]string
	Remove []string
}

// Route returns what is known of path, which is below the base URL: the longest
// match, or a route without stream rules.
func (p *Profile) Route(path string) Route {
	r, _ := p.route(path)
	return r
}

// route is Route that says whether the profile names it.
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

// AddQuery returns a raw query with the route's parameters. One that the caller has
// sent with the same value stays where it is; with another, the route's stands in its
// place.
func (r *Route) AddQuery(raw string) string {
	if len(r.Query) == 0 {
		return raw
	}
	var pairs []string
	if raw != "" {
		pairs = strings.Split(raw, "&")
	}
	for _, p := range r.Query {
		pair := p.Name + "=" + p.Value
		if slices.Contains(pairs, pair) {
			continue
		}
		pairs = slices.DeleteFunc(pairs, func(have string) bool {
			name, _, _ := strings.Cut(have, "=")
			plain, err := url.QueryUnescape(name)
			return err == nil && url.QueryEscape(plain) == p.Name
		})
		pairs = append(pairs, pair)
	}
	return strings.Join(pairs, "&")
}

// Below returns what path, as the caller wrote it behind the provider's name, is below
// an account's base URL, and what is known of it there. A mount at its beginning stands
// for the base URL where that ends with the mount. Where the base URL has another path
// (/api/paas/v4), it does for the routes that the profile names, since their API begins
// there; elsewhere it is a part of the path.
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

// Base returns the base URL of an account: its own, without what TrimBase says
// that people add by mistake, else the profile's. Nil means there is none.
func (p *Profile) Base(own *url.URL) *url.URL {
	if own == nil {
		return p.BaseURL
	}
	u := *own
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), p.TrimBase)
	u.RawPath = ""
	return &u
}

// Apply changes a request's headers to what the profile wants and puts the
// credential in its place. Without a secret no credential header is sent.
func (p *Profile) Apply(h http.Header, secret string) {
	for _, name := range p.Headers.Remove {
		if prefix, open := strings.CutSuffix(name, "*"); open {
			maps.DeleteFunc(h, func(k string, _ []string) bool { return strings.HasPrefix(k, prefix) })
			continue
		}
		h.Del(name)
	}
	for name, values := range p.Headers.Append {
		h.Set(name, merge(h.Values(name), values))
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

// merge adds entries to a comma separated list, each once.
func merge(have, add []string) string {
	var list []string
	for _, line := range have {
		for entry := range strings.SplitSeq(line, ",") {
			if entry = strings.TrimSpace(entry); entry != "" && !slices.Contains(list, entry) {
				list = append(list, entry)
			}
		}
	}
	for _, entry := range add {
		if !slices.Contains(list, entry) {
			list = append(list, entry)
		}
	}
	return strings.Join(list, ",")
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

// For returns the profile that a provider's accounts use when they name none.
func (s *Set) For(provider string) (*Profile, bool) {
	p, ok := s.byProvider[provider]
	return p, ok
}

// Label is what metrics call a provider: its name where a profile is for it, else
// "other". A workspace may name its providers as it likes.
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

// Shipped returns the files of the profiles that come with the product.
func Shipped() fs.FS {
	sub, err := fs.Sub(shipped, "profiles")
	if err != nil {
		panic(fmt.Sprintf("embedded profiles: %v", err)) // the pattern above is a constant
	}
	return sub
}
