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

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"signalbox.dev/services/credential-broker/internal/transform"
)

const (
	maxFile     = 64 << 10
	maxFiles    = 200
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
		Header string `yaml:"header"`
		Scheme string `yaml:"scheme"`
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
	At     []string `yaml:"at"`
	Input  []string `yaml:"input"`
	Output []string `yaml:"output"`
}

type sourceLimit struct {
	Remaining string `yaml:"remaining"`
	Reset     string `yaml:"reset"`
}

type sourceRoute struct {
	Path       string            `yaml:"path"`
	Query      map[string]string `yaml:"query"`
	Body       string            `yaml:"body"`
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
	all := map[string]*Profile{}
	var problems []error
	for _, dir := range dirs {
		files, err := fs.Glob(dir, "*.yaml")
		if err != nil {
			return nil, fmt.Errorf("list request profiles: %w", err)
		}
		if len(files) > maxFiles {
			return nil, fmt.Errorf("list request profiles: %d files are over the limit of %d", len(files), maxFiles)
		}
		from := map[string]string{}
		for _, file := range files {
			p, err := loadFile(dir, file, version)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if other, taken := from[p.Name]; taken {
				problems = append(problems, fmt.Errorf("%s: name: %q is taken by %s", file, p.Name, other))
				continue
			}
			from[p.Name] = file
			all[p.Name] = p
		}
		misnamed, err := fs.Glob(dir, "*.yml")
		if err != nil {
			return nil, fmt.Errorf("list request profiles: %w", err)
		}
		for _, file := range misnamed {
			problems = append(problems, fmt.Errorf("%s: a request profile's file ends with .yaml: rename it", file))
		}
	}
	s := &Set{byName: all, byProvider: map[string]*Profile{}}
	for _, name := range s.Names() {
		p := all[name]
		if p.DefaultFor == "" {
			continue
		}
		if other, taken := s.byProvider[p.DefaultFor]; taken {
			problems = append(problems, fmt.Errorf("profile %s: default_for: %s is the default of %s already", name, other.Name, p.DefaultFor))
			continue
		}
		s.byProvider[p.DefaultFor] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return s, nil
}

func loadFile(dir fs.FS, file, version string) (*Profile, error) {
	info, err := fs.Stat(dir, file)
	if err != nil {
		return nil, fmt.Errorf("read request profile: %w", err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s: a request profile of %d bytes is over the limit of %d", file, info.Size(), maxFile)
	}
	text, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, fmt.Errorf("read request profile: %w", err)
	}
	return parse(file, text, version)
}

// parse reads one profile.
func parse(file string, text []byte, version string) (*Profile, error) {
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, positioned(file, err)
	}
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return nil, fmt.Errorf("%s: want exactly one YAML document", file)
	}
	var src source
	if err := yaml.NodeToValue(tree.Docs[0].Body, &src, yaml.Strict()); err != nil {
		return nil, positioned(file, err)
	}
	c := &checker{file: file, tree: tree, version: version}
	p := c.profile(&src)
	if err := errors.Join(c.problems...); err != nil {
		return nil, err
	}
	return p, nil
}

// positioned puts file and line in front of an error of the YAML library, in one line.
func positioned(file string, err error) error {
	if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", file, e.GetToken().Position.Line, e.GetMessage())
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%s: %s", file, first)
}

// checker turns a source into a profile and notes what is wrong with it.
type checker struct {
	file     string
	tree     *ast.File
	version  string
	problems []error
}

// wrong notes a problem with a field; the path is the field's, as routes[0].path.
func (c *checker) wrong(path, format string, args ...any) {
	where := c.file
	if line := c.line(path); line > 0 {
		where = fmt.Sprintf("%s:%d", c.file, line)
	}
	c.problems = append(c.problems, fmt.Errorf("%s: %s: %s", where, path, fmt.Sprintf(format, args...)))
}

// line returns the line of a field, or of the nearest one around it that is there.
func (c *checker) line(path string) int {
	for path != "" {
		if p, err := yaml.PathString("$." + path); err == nil {
			if node, err := p.FilterFile(c.tree); err == nil && node != nil && node.GetToken() != nil {
				return node.GetToken().Position.Line
			}
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return 1
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
		c.wrong("name", "%q is not a name: use lower-case letters, digits and dashes, 64 at most", src.Name)
	}
	if src.DefaultFor != "" && !nameForm.MatchString(src.DefaultFor) {
		c.wrong("default_for", "%q is not a provider's name: use lower-case letters, digits and dashes", src.DefaultFor)
	}
	if !slices.Contains(dialects, p.Dialect) {
		c.wrong("dialect", "%q is unknown: use anthropic, openai, google, notion or github", src.Dialect)
	}
	p.BaseURL = c.baseURL(src.BaseURL)
	for i, mount := range src.Mounts {
		c.prefix(fmt.Sprintf("mounts[%d]", i), mount)
	}
	if src.TrimBase != "" {
		c.prefix("trim_base", src.TrimBase)
	}
	p.Auth = Auth{Header: c.headerName("auth.header", src.Auth.Header), Scheme: src.Auth.Scheme}
	if src.Auth.Scheme != "" && !headerForm.MatchString(src.Auth.Scheme) {
		c.wrong("auth.scheme", "%q is not an authentication scheme: use a word such as Bearer, or leave it out", src.Auth.Scheme)
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
			c.wrong(field+".body", "%q is not a form of bodies that can be changed: use messages, for Anthropic's Messages API, or leave it out", src.Routes[i].Body)
		}
		p.Routes = append(p.Routes, r)
	}
	return p
}

func (c *checker) prefix(field, path string) {
	if path == "" || !pathForm.MatchString(path) || strings.HasSuffix(path, "/") || strings.HasSuffix(path, "*") {
		c.wrong(field, "%q is not a path: begin with a slash and end without one", path)
	}
}

func (c *checker) baseURL(text string) *url.URL {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		c.wrong("base_url", "want https://host/path")
	case u.User != nil:
		c.wrong("base_url", "it must hold no user or password: credentials belong to accounts")
	case u.RawQuery != "" || u.Fragment != "":
		c.wrong("base_url", "it must end with the path, without ? or #")
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
		c.wrong(field, "%q is not the name of a header", name)
		return ""
	}
	name = http.CanonicalHeaderKey(name)
	if slices.Contains(reserved, name) {
		c.wrong(field, "%s is decided by the proxy and cannot be given here", name)
	}
	return name
}

func (c *checker) headers(src *source, auth string) Headers {
	h := Headers{Set: map[string]string{}, Append: map[string][]string{}}
	for _, name := range slices.Sorted(maps.Keys(src.Headers.Set)) {
		value := src.Headers.Set[name]
		field := "headers.set." + name
		if key := c.headerName(field, name); key == auth {
			c.wrong(field, "the credential's own header cannot be set")
		} else {
			h.Set[key] = c.headerValue(field, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(src.Headers.Append)) {
		value := src.Headers.Append[name]
		field := "headers.append." + name
		key := c.headerName(field, name)
		if key == auth {
			c.wrong(field, "the credential's own header cannot be appended to")
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
			c.wrong(field, "%q is not the name of a header (a * may end it)", name)
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
		c.wrong(field, "the only variable is ${version}")
	}
	for _, b := range []byte(value) {
		if b < ' ' || b > '~' {
			c.wrong(field, "a header's value is printable ASCII in one line")
			break
		}
	}
	return value
}

func (c *checker) route(field string, src *sourceRoute, before []Route) Route {
	r := Route{Path: src.Path, Query: c.query(field, src.Query)}
	if src.Path == "" || !pathForm.MatchString(src.Path) {
		c.wrong(field+".path", "%q is not a path: begin with a slash; a * may end it", src.Path)
	}
	if slices.ContainsFunc(before, func(o Route) bool { return o.Path == src.Path }) {
		c.wrong(field+".path", "%q has a route already", src.Path)
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
			c.wrong(field+".stream.terminal", "name the events that end a stream")
		}
	case Chat:
		if len(s.Preamble)+len(s.Terminal)+len(s.Error)+len(s.Usage) > 0 {
			c.wrong(field+".stream", "chat chunks have no names: leave preamble, terminal, error and usage out")
		}
	default:
		c.wrong(field+".stream.events", "%q is not a form of events: use typed or chat", s.Events)
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
			c.wrong(fmt.Sprintf("%s[%d]", field, i), "%q is not the name of an event", name)
		}
	}
}

func (c *checker) duration(field, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxWait {
		c.wrong(field, "%q is not a time: use a number and a unit, such as 90s or 10m, at most %s", text, maxWait)
		return 0
	}
	return d
}
