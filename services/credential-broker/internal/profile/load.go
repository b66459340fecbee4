package profile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/datafile"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/transform"
	"signalbox.dev/services/credential-broker/internal/usage"
)

const (
	maxWait     = time.Hour
	defaultWait = 5 * time.Minute
	maxWord     = 200 // bytes: a request may have 65,536 words to replace
)

// source is a profile's file.
type source struct {
	Profile    `yaml:",inline"`
	BaseURL    string `yaml:"base_url"`
	ToolPrefix string `yaml:"tool_prefix"`
	System     struct {
		First []string         `yaml:"first"`
		Words []transform.Word `yaml:"words"`
	} `yaml:"system"`
	Routes []routeSource `yaml:"routes"`
}

type routeSource struct {
	Route      `yaml:",inline"`
	Body       string `yaml:"body"`
	Wait       string `yaml:"wait"`
	WaitStream string `yaml:"wait_stream"`
}

// Open loads the shipped profiles and, unless dir is empty, an operator's own from that
// folder.
func Open(version, dir string) (*Set, error) {
	if dir == "" {
		return Load(version, Shipped())
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of request profiles: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("read the folder of request profiles: %s is a file", dir)
	}
	return Load(version, Shipped(), os.DirFS(dir))
}

// Load reads every *.yaml file at the root of each of dirs. A profile of a later
// directory replaces one of the same name of an earlier one; within a directory
// names are unique. ${version} in a header's value becomes version. The error
// joins all problems, one line for each.
func Load(version string, dirs ...fs.FS) (*Set, error) {
	all, problems, err := datafile.LoadAll("request profile", func(p *Profile) string { return p.Name },
		func(file string, text []byte) (*Profile, error) { return parse(file, text, version) }, dirs...)
	if err != nil {
		return nil, err
	}
	s := &Set{byName: all, byProvider: map[string]*Profile{}}
	for _, name := range s.Names() {
		p := all[name]
		if p.DefaultFor == "" {
			continue
		}
		if other, taken := s.byProvider[p.DefaultFor]; taken {
			problems = append(problems, fmt.Errorf("%s: default_for: the default of %s is the profile %s already (%s)", p.defaultAt, p.DefaultFor, other.Name, other.defaultAt))
			continue
		}
		s.byProvider[p.DefaultFor] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return s, nil
}

// parse reads one profile.
func parse(file string, text []byte, version string) (*Profile, error) {
	var src source
	fields, err := datafile.Decode(file, text, &src)
	if err != nil {
		return nil, err
	}
	c := &checker{fields, version}
	c.profile(&src)
	src.defaultAt = c.At("default_for")
	if err := c.Err(); err != nil {
		return nil, err
	}
	return &src.Profile, nil
}

// checker completes a profile from its source and notes what is wrong with it.
type checker struct {
	*datafile.Checker
	version string
}

var (
	nameForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	eventForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'+.^_`|~-]{1,128}$")
	pathForm   = regexp.MustCompile(`^(/[A-Za-z0-9_.~:@-]+)*(/\*?|\*)?$`)
	toolForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	memberForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	placeForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,4}$`)
	paramForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

func (c *checker) profile(src *source) {
	p := &src.Profile
	if !nameForm.MatchString(p.Name) {
		c.Wrong("name", "%q is not a name: use lower-case letters, digits and dashes, 64 at most", p.Name)
	}
	if p.DefaultFor != "" && !nameForm.MatchString(p.DefaultFor) {
		c.Wrong("default_for", "%q is not a provider's name: use lower-case letters, digits and dashes", p.DefaultFor)
	}
	if !slices.Contains(dialects, p.Dialect) {
		c.Wrong("dialect", "%q is unknown: use anthropic, openai, google, notion or github", string(p.Dialect))
	}
	if src.BaseURL != "" {
		u, err := target.ParseURL(src.BaseURL)
		if err != nil {
			c.Wrong("base_url", "%s", err)
		}
		p.BaseURL = u
	}
	for i, mount := range p.Mounts {
		c.prefix(fmt.Sprintf("mounts[%d]", i), mount)
	}
	if p.TrimBase != "" {
		c.prefix("trim_base", p.TrimBase)
	}
	p.Auth.Header = c.headerName("auth.header", p.Auth.Header)
	if p.Auth.Scheme != "" && !headerForm.MatchString(p.Auth.Scheme) {
		c.Wrong("auth.scheme", "%q is not an authentication scheme: use a word such as Bearer, or leave it out", p.Auth.Scheme)
	}
	c.each("auth.params", p.Auth.Params, paramForm, "the name of a query's parameter")
	c.headers(&p.Headers, p.Auth.Header)
	if p.Usage != nil {
		c.usage(p.Usage)
	}
	for i := range p.Limits {
		c.limit(fmt.Sprintf("limits[%d]", i), &p.Limits[i])
	}
	messages := transform.NewMessages(c.rules(src))
	for i := range src.Routes {
		c.route(fmt.Sprintf("routes[%d]", i), &src.Routes[i], p, messages)
	}
	if p.Check != nil {
		c.prefix("check.path", p.Check.Path)
		headers := map[string]string{}
		for name, value := range p.Check.Headers {
			headers[c.headerName("check.headers", name)] = value
		}
		p.Check.Headers = headers
	}
}

// each checks that every entry of a list has the form of what it is.
func (c *checker) each(field string, list []string, form *regexp.Regexp, what string) {
	for i, text := range list {
		if !form.MatchString(text) {
			c.Wrong(fmt.Sprintf("%s[%d]", field, i), "%q is not %s", clip(text), what)
		}
	}
}

// clip shortens text that is quoted in a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

func (c *checker) prefix(field, path string) {
	if path == "" || !isPath(path) || strings.HasSuffix(path, "/") || strings.HasSuffix(path, "*") {
		c.Wrong(field, "%q is not a path: begin with a slash and end without one", path)
	}
}

// isPath reports whether text is a path without dot segments.
func isPath(path string) bool {
	segments := strings.Split(path, "/")
	return pathForm.MatchString(path) && !slices.Contains(segments, ".") && !slices.Contains(segments, "..")
}

// reserved are headers that the proxy itself decides about.
var reserved = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Expect", "Accept-Encoding", "Signalbox-Context"}

func (c *checker) headerName(field, name string) string {
	if !headerForm.MatchString(name) {
		c.Wrong(field, "%q is not the name of a header", clip(name))
		return ""
	}
	name = http.CanonicalHeaderKey(name)
	if slices.Contains(reserved, name) {
		c.Wrong(field, "%s is set by the proxy and cannot be given here", name)
	}
	return name
}

func (c *checker) headers(h *Headers, auth string) {
	given := []string{auth}
	values := func(field string, src map[string]string) map[string]string {
		out := map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(src)) {
			at := field + "." + name
			key := c.headerName(at, name)
			switch {
			case key == auth:
				c.Wrong(at, "the credential's own header cannot be changed")
			case slices.Contains(given, key):
				c.Wrong(at, "%s is already given: case does not matter", key)
			}
			given = append(given, key)
			out[key] = c.headerValue(at, src[name])
		}
		return out
	}
	h.Set, h.Append = values("headers.set", h.Set), values("headers.append", h.Append)
	for i, name := range h.Remove {
		prefix, star := strings.CutSuffix(name, "*")
		if !headerForm.MatchString(prefix) {
			c.Wrong(fmt.Sprintf("headers.remove[%d]", i), "%q is not the name of a header (a * may end it)", name)
		}
		h.Remove[i] = http.CanonicalHeaderKey(prefix)
		if star {
			h.Remove[i] += "*"
		}
	}
}

func (c *checker) headerValue(field, value string) string {
	value = strings.ReplaceAll(value, "${version}", c.version)
	if strings.Contains(value, "${") {
		c.Wrong(field, "the only variable is ${version}")
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		c.Wrong(field, "a header's value must be printable ASCII on one line")
	}
	return value
}

func (c *checker) usage(p *usage.Places) {
	if len(p.At) == 0 {
		c.Wrong("usage.at", "name the members of an answer that contain the counts, such as [usage]")
	}
	if n := p.Members(); n > usage.MaxMembers {
		c.Wrong("usage", "%d members are over the limit of %d", n, usage.MaxMembers)
	}
	for field, paths := range map[string][]usage.Path{"at": p.At, "input": p.Input, "output": p.Output, "cache_read": p.CacheRead, "cache_write": p.CacheWrite} {
		texts := make([]string, len(paths))
		for i, path := range paths {
			texts[i] = strings.Join(path, ".")
		}
		c.each("usage."+field, texts, placeForm, "the name of a member, or several separated by dots")
	}
}

func (c *checker) limit(field string, l *Limit) {
	if l.Reset == "" && l.Remaining == "" && l.Status == "" {
		c.Wrong(field, "name the headers: remaining or status, reset, or both")
	}
	if (l.Status == "") != (l.Used == "") {
		c.Wrong(field+".used", "set status and used together; used is the header's value when the limit is reached, such as {status: x-quota-status, used: rejected}")
	}
	if l.Status != "" && l.Remaining != "" {
		c.Wrong(field+".status", "a limit has either remaining or status: make two limits of it")
	}
	for name, header := range map[string]*string{"remaining": &l.Remaining, "status": &l.Status, "reset": &l.Reset} {
		if *header != "" {
			*header = c.headerName(field+"."+name, *header)
		}
	}
}

// rules returns what is changed in bodies.
func (c *checker) rules(src *source) transform.Rules {
	if src.ToolPrefix != "" && !toolForm.MatchString(src.ToolPrefix) {
		c.Wrong("tool_prefix", "%q cannot begin the name of a tool: use letters, digits, - and _, 32 at most", clip(src.ToolPrefix))
	}
	for i, text := range src.System.First {
		if strings.TrimSpace(text) == "" || !utf8.ValidString(text) {
			c.Wrong(fmt.Sprintf("system.first[%d]", i), "a block of the system prompt must contain text in UTF-8")
		}
	}
	for i := range src.System.Words {
		c.word(fmt.Sprintf("system.words[%d]", i), &src.System.Words[i])
	}
	if !slices.ContainsFunc(src.Routes, func(r routeSource) bool { return r.Body != "" }) {
		for field, set := range map[string]bool{"tool_prefix": src.ToolPrefix != "", "system": len(src.System.First)+len(src.System.Words) > 0} {
			if set {
				c.Wrong(field, "it would change nothing, because no route has body: messages; only bodies of Anthropic's Messages API can be changed")
			}
		}
	}
	return transform.Rules{ToolPrefix: src.ToolPrefix, System: src.System.First, Words: src.System.Words}
}

func (c *checker) word(field string, w *transform.Word) {
	first, _ := utf8.DecodeRuneInString(w.From)
	last, _ := utf8.DecodeLastRuneInString(w.From)
	edge := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	if len(w.From) > maxWord || !edge(first) || !edge(last) || !utf8.ValidString(w.From) || strings.ContainsFunc(w.From, unicode.IsControl) {
		c.Wrong(field+".from", "%q is not a word: it must begin and end with a letter or a digit, be on one line and have at most %d bytes", clip(w.From), maxWord)
	}
	if len(w.To) > maxWord || !utf8.ValidString(w.To) {
		c.Wrong(field+".to", "it is not UTF-8, or longer than %d bytes", maxWord)
	}
	w.Case = cmp.Or(w.Case, transform.Exact)
	if w.Case != transform.Exact && w.Case != transform.Any && w.Case != transform.Keep {
		c.Wrong(field+".case", "%q is not a rule for upper and lower case: use exact, any or keep", clip(string(w.Case)))
	}
}

// route completes a route and adds it to the profile.
func (c *checker) route(field string, src *routeSource, p *Profile, messages *transform.Messages) {
	r := src.Route
	if r.Path == "" || !isPath(r.Path) {
		c.Wrong(field+".path", "%q is not a path: begin with a slash; a * may end it", r.Path)
	}
	if slices.ContainsFunc(p.Routes, func(o Route) bool { return o.Path == r.Path }) {
		c.Wrong(field+".path", "%q already has a route", r.Path)
	}
	for name := range r.Query {
		if !paramForm.MatchString(name) {
			c.Wrong(field+".query."+name, "%q is not the name of a parameter", clip(name))
		}
	}
	switch src.Body {
	case "":
	case "messages":
		r.Messages = messages
	default:
		c.Wrong(field+".body", "bodies of the form %q cannot be changed: use messages, for Anthropic's Messages API, or leave it out", src.Body)
	}
	c.each(field+".urls", r.URLs, memberForm, "the name of a member")
	if len(r.URLs) > 0 && src.Body != "" {
		c.Wrong(field+".urls", "set body or urls, not both")
	}
	r.Wait = cmp.Or(c.duration(field+".wait", src.Wait), defaultWait)
	r.WaitStream = cmp.Or(c.duration(field+".wait_stream", src.WaitStream), r.Wait)
	if r.Stream != nil {
		c.stream(field+".stream", r.Stream)
	}
	p.Routes = append(p.Routes, r)
}

func (c *checker) stream(field string, s *Stream) {
	switch s.Events {
	case Typed:
		if len(s.Terminal) == 0 {
			c.Wrong(field+".terminal", "name the events that end a stream")
		}
	case Chat:
		if len(s.Preamble)+len(s.Terminal)+len(s.Error)+len(s.Usage) > 0 {
			c.Wrong(field, "chat chunks have no names: leave preamble, terminal, error and usage out")
		}
	default:
		c.Wrong(field+".events", "%q is not a form of events: use typed or chat", string(s.Events))
	}
	for i, name := range s.Preamble {
		at := fmt.Sprintf("%s.preamble[%d]", field, i)
		if slices.Contains(s.Terminal, name) {
			c.Wrong(at, "%q is also in terminal: an event cannot both precede the content and end the stream", name)
		}
		if slices.Contains(s.Error, name) {
			c.Wrong(at, "%q is also in error: an event cannot both precede the content and report an error", name)
		}
	}
	for list, names := range map[string][]string{"preamble": s.Preamble, "terminal": s.Terminal, "error": s.Error, "usage": s.Usage} {
		c.each(field+"."+list, names, eventForm, "the name of an event")
	}
}

func (c *checker) duration(field, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxWait {
		c.Wrong(field, "%q is not a time: use a number and a unit, such as 90s or 10m, at most %s", text, maxWait)
		return 0
	}
	return d
}
