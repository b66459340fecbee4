package profile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/credential-broker/internal/datafile"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/transform"
)

const (
	maxWait     = time.Hour
	defaultWait = 5 * time.Minute
)

// The source of a profile, as YAML.
type source struct {
	Name       string   `yaml:"name"`
	DefaultFor string   `yaml:"default_for"`
	Dialect    string   `yaml:"dialect"`
	BaseURL    string   `yaml:"base_url"`
	Mounts     []string `yaml:"mounts"`
	TrimBase   string   `yaml:"trim_base"`
	Auth       struct {
		Header string   `yaml:"header"`
		Scheme string   `yaml:"scheme"`
		Params []string `yaml:"params"`
	} `yaml:"auth"`
	Headers struct {
		Set    map[string]string `yaml:"set"`
		Append map[string]string `yaml:"append"`
		Remove []string          `yaml:"remove"`
	} `yaml:"headers"`
	ToolPrefix string        `yaml:"tool_prefix"`
	System     sourceSystem  `yaml:"system"`
	Usage      *sourceUsage  `yaml:"usage"`
	Limits     []sourceLimit `yaml:"limits"`
	Routes     []sourceRoute `yaml:"routes"`
	Check      *sourceCheck  `yaml:"check"`
}

type sourceCheck struct {
	Path    string            `yaml:"path"`
	Headers map[string]string `yaml:"headers"`
}

type sourceSystem struct {
	First []string `yaml:"first"`
	Words []struct {
		From string `yaml:"from"`
		To   string `yaml:"to"`
		Case string `yaml:"case"`
	} `yaml:"words"`
}

type sourceUsage struct {
	At         []string `yaml:"at"`
	Input      []string `yaml:"input"`
	Output     []string `yaml:"output"`
	CacheRead  []string `yaml:"cache_read"`
	CacheWrite []string `yaml:"cache_write"`
}

type sourceLimit struct {
	Remaining string `yaml:"remaining"`
	Status    string `yaml:"status"`
	Used      string `yaml:"used"`
	Reset     string `yaml:"reset"`
}

type sourceRoute struct {
	Path       string            `yaml:"path"`
	Query      map[string]string `yaml:"query"`
	Body       string            `yaml:"body"`
	URLs       []string          `yaml:"urls"`
	Wait       string            `yaml:"wait"`
	WaitStream string            `yaml:"wait_stream"`
	Stream     *sourceStream     `yaml:"stream"`
}

type sourceStream struct {
	Events   string   `yaml:"events"`
	Preamble []string `yaml:"preamble"`
	Terminal []string `yaml:"terminal"`
	Error    []string `yaml:"error"`
	Usage    []string `yaml:"usage"`
}

// Open loads what the product ships and, unless dir is empty, an operator's own
// profiles from the folder of that name.
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
// joins all that is wrong, one line for each.
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
	p := c.profile(&src)
	p.defaultAt = c.At("default_for")
	if err := c.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// checker turns a source into a profile and notes what is wrong with it.
type checker struct {
	*datafile.Checker
	version string
}

var (
	nameForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	eventForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	pathForm   = regexp.MustCompile(`^(/[A-Za-z0-9_.~:@-]+)*(/\*?|\*)?$`)
)

func (c *checker) profile(src *source) *Profile {
	p := &Profile{Name: src.Name, DefaultFor: src.DefaultFor, Dialect: Dialect(src.Dialect), Mounts: src.Mounts, TrimBase: src.TrimBase}
	if !nameForm.MatchString(src.Name) {
		c.Wrong("name", "%q is not a name: use lower-case letters, digits and dashes, 64 at most", src.Name)
	}
	if src.DefaultFor != "" && !nameForm.MatchString(src.DefaultFor) {
		c.Wrong("default_for", "%q is not a provider's name: use lower-case letters, digits and dashes", src.DefaultFor)
	}
	if !slices.Contains(dialects, p.Dialect) {
		c.Wrong("dialect", "%q is unknown: use anthropic, openai, google, notion or github", src.Dialect)
	}
	p.BaseURL = c.baseURL(src.BaseURL)
	for i, mount := range src.Mounts {
		c.prefix(fmt.Sprintf("mounts[%d]", i), mount)
	}
	if src.TrimBase != "" {
		c.prefix("trim_base", src.TrimBase)
	}
	p.Auth = Auth{Header: c.headerName("auth.header", src.Auth.Header), Scheme: src.Auth.Scheme, Params: src.Auth.Params}
	if src.Auth.Scheme != "" && !headerForm.MatchString(src.Auth.Scheme) {
		c.Wrong("auth.scheme", "%q is not an authentication scheme: use a word such as Bearer, or leave it out", src.Auth.Scheme)
	}
	for i, name := range src.Auth.Params {
		if !paramForm.MatchString(name) {
			c.Wrong(fmt.Sprintf("auth.params[%d]", i), "%q is not the name of a query's parameter", name)
		}
	}
	p.Headers = c.headers(src, p.Auth.Header)
	p.Usage = c.usage(src.Usage)
	p.Limits = c.limits(src.Limits)
	messages := transform.NewMessages(c.rules(src))
	for i := range src.Routes {
		field := fmt.Sprintf("routes[%d]", i)
		r := c.route(field, &src.Routes[i], p.Routes)
		switch src.Routes[i].Body {
		case "":
		case "messages":
			r.Messages = messages
		default:
			c.Wrong(field+".body", "%q is not a form of bodies that can be changed: use messages, for Anthropic's Messages API, or leave it out", src.Routes[i].Body)
		}
		p.Routes = append(p.Routes, r)
	}
	if src.Check != nil {
		c.prefix("check.path", src.Check.Path)
		p.Check = &Check{Path: src.Check.Path, Headers: map[string]string{}}
		for name, value := range src.Check.Headers {
			p.Check.Headers[c.headerName("check.headers", name)] = value
		}
	}
	return p
}

func (c *checker) prefix(field, path string) {
	if path == "" || !isPath(path) || strings.HasSuffix(path, "/") || strings.HasSuffix(path, "*") {
		c.Wrong(field, "%q is not a path: begin with a slash and end without one", path)
	}
}

// isPath reports whether a path has the form of one and no segment that means another.
func isPath(path string) bool {
	dots := func(segment string) bool { return segment == "." || segment == ".." }
	return pathForm.MatchString(path) && !slices.ContainsFunc(strings.Split(path, "/"), dots)
}

func (c *checker) baseURL(text string) *url.URL {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		c.Wrong("base_url", "want https://host/path")
	case u.User != nil:
		c.Wrong("base_url", "it must hold no user or password: credentials belong to accounts")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		c.Wrong("base_url", "it must end with the path, without ? or #")
	case slices.Contains(strings.Split(u.Path, "/"), ".."):
		c.Wrong("base_url", "it must not hold .. as a segment of its path")
	case target.CheckHost(u) != nil:
		c.Wrong("base_url", "%s", target.CheckHost(u))
	default:
		u.Path = strings.TrimRight(u.Path, "/")
		return u
	}
	return nil
}

// reserved are headers that the proxy itself decides about.
var reserved = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Expect", "Accept-Encoding", "Signalbox-Context"}

func (c *checker) headerName(field, name string) string {
	if !headerForm.MatchString(name) || strings.Contains(name, "*") {
		c.Wrong(field, "%q is not the name of a header", name)
		return ""
	}
	name = http.CanonicalHeaderKey(name)
	if slices.Contains(reserved, name) {
		c.Wrong(field, "%s is decided by the proxy and cannot be given here", name)
	}
	return name
}

func (c *checker) headers(src *source, auth string) Headers {
	h := Headers{Set: map[string]string{}, Append: map[string][]string{}}
	for _, name := range slices.Sorted(maps.Keys(src.Headers.Set)) {
		value := src.Headers.Set[name]
		field := "headers.set." + name
		if key := c.headerName(field, name); key == auth {
			c.Wrong(field, "the credential's own header cannot be set")
		} else if _, given := h.Set[key]; given {
			c.Wrong(field, "%s is given already: upper and lower case are the same", key)
		} else {
			h.Set[key] = c.headerValue(field, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(src.Headers.Append)) {
		value := src.Headers.Append[name]
		field := "headers.append." + name
		key := c.headerName(field, name)
		if key == auth {
			c.Wrong(field, "the credential's own header cannot be appended to")
		}
		if _, set := h.Set[key]; set || h.Append[key] != nil {
			c.Wrong(field, "%s is given already: upper and lower case are the same", key)
		}
		for entry := range strings.SplitSeq(c.headerValue(field, value), ",") {
			if entry = strings.TrimSpace(entry); entry != "" {
				h.Append[key] = append(h.Append[key], entry)
			}
		}
	}
	for i, name := range src.Headers.Remove {
		field := fmt.Sprintf("headers.remove[%d]", i)
		prefix, open := strings.CutSuffix(name, "*")
		if !headerForm.MatchString(prefix) || strings.Contains(prefix, "*") {
			c.Wrong(field, "%q is not the name of a header (a * may end it)", name)
			continue
		}
		prefix = http.CanonicalHeaderKey(prefix)
		if open {
			prefix += "*"
		}
		h.Remove = append(h.Remove, prefix)
	}
	return h
}

func (c *checker) headerValue(field, value string) string {
	value = strings.ReplaceAll(value, "${version}", c.version)
	if strings.Contains(value, "${") {
		c.Wrong(field, "the only variable is ${version}")
	}
	for _, b := range []byte(value) {
		if b < ' ' || b > '~' {
			c.Wrong(field, "a header's value is printable ASCII in one line")
			break
		}
	}
	return value
}

func (c *checker) route(field string, src *sourceRoute, before []Route) Route {
	r := Route{Path: src.Path, Query: c.query(field, src.Query), URLs: src.URLs}
	if src.Path == "" || !isPath(src.Path) {
		c.Wrong(field+".path", "%q is not a path: begin with a slash; a * may end it", src.Path)
	}
	if slices.ContainsFunc(before, func(o Route) bool { return o.Path == src.Path }) {
		c.Wrong(field+".path", "%q has a route already", src.Path)
	}
	for i, name := range src.URLs {
		if !memberForm.MatchString(name) || strings.Contains(name, ".") {
			c.Wrong(fmt.Sprintf("%s.urls[%d]", field, i), "%q is not the name of a member", clip(name))
		}
	}
	if len(src.URLs) > 0 && src.Body != "" {
		c.Wrong(field+".urls", "an answer is changed for body or for urls: leave one of them out")
	}
	r.Wait = cmp.Or(c.duration(field+".wait", src.Wait), defaultWait)
	r.WaitStream = cmp.Or(c.duration(field+".wait_stream", src.WaitStream), r.Wait)
	if src.Stream == nil {
		return r
	}
	s := src.Stream
	r.Stream = &Stream{Events: Events(s.Events), Preamble: s.Preamble, Terminal: s.Terminal, Error: s.Error, Usage: s.Usage}
	switch r.Stream.Events {
	case Typed:
		if len(s.Terminal) == 0 {
			c.Wrong(field+".stream.terminal", "name the events that end a stream")
		}
	case Chat:
		if len(s.Preamble)+len(s.Terminal)+len(s.Error)+len(s.Usage) > 0 {
			c.Wrong(field+".stream", "chat chunks have no names: leave preamble, terminal, error and usage out")
		}
	default:
		c.Wrong(field+".stream.events", "%q is not a form of events: use typed or chat", s.Events)
	}
	for i, name := range s.Preamble {
		at := fmt.Sprintf("%s.stream.preamble[%d]", field, i)
		if slices.Contains(s.Terminal, name) {
			c.Wrong(at, "%q is terminal too: an event that says nothing yet ends nothing", name)
		}
		if slices.Contains(s.Error, name) {
			c.Wrong(at, "%q is an error too: an event that says nothing yet reports none", name)
		}
	}
	c.eventNames(field+".stream.preamble", s.Preamble)
	c.eventNames(field+".stream.terminal", s.Terminal)
	c.eventNames(field+".stream.error", s.Error)
	c.eventNames(field+".stream.usage", s.Usage)
	return r
}

func (c *checker) eventNames(field string, names []string) {
	for i, name := range names {
		if !eventForm.MatchString(name) {
			c.Wrong(fmt.Sprintf("%s[%d]", field, i), "%q is not the name of an event", name)
		}
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
