package oauth

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/datafile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	maxScopes    = 100
	defaultAhead = 5 * time.Minute
	maxTitle     = 60
	maxTime      = 10 * 366 * 24 * time.Hour
)

// The source of a provider, as YAML.
type source struct {
	Name      string `yaml:"name"`
	Account   string `yaml:"account"`
	Profile   string `yaml:"profile"`
	Endpoints struct {
		Authorize string `yaml:"authorize"`
		Token     string `yaml:"token"`
		Device    string `yaml:"device"`
		Revoke    string `yaml:"revoke"`
		CodePage  string `yaml:"code_page"`
	} `yaml:"endpoints"`
	Client struct {
		ID   string `yaml:"id"`
		Auth string `yaml:"auth"`

		Loopback bool `yaml:"loopback"`
	} `yaml:"client"`
	Request struct {
		Encoding  string            `yaml:"encoding"`
		State     bool              `yaml:"state"`
		Authorize map[string]string `yaml:"authorize"`
		Token     map[string]string `yaml:"token"`
	} `yaml:"request"`
	Scopes []string `yaml:"scopes"`
	Tokens struct {
		Rotate            bool   `yaml:"rotate"`
		RefreshEndsAccess bool   `yaml:"refresh_ends_access"`
		Idle              string `yaml:"idle"`
		Ahead             string `yaml:"ahead"`
	} `yaml:"tokens"`
	Errors     []string `yaml:"errors"`
	Connection struct {
		Title  string `yaml:"title"`
		Whoami struct {
			URL     string            `yaml:"url"`
			Headers map[string]string `yaml:"headers"`
			At      []string          `yaml:"at"`
		} `yaml:"whoami"`
	} `yaml:"connection"`
}

// Load reads every *.yaml file at the root of each of dirs. A provider of a later
// directory replaces one of the same name of an earlier one; within a directory names
// are unique. clients, by provider, go before the id that a file has; naming a
// provider that is not there is an error. The error joins all that is wrong, one line
// for each, with file, line and field.
func Load(clients map[string]Client, dirs ...fs.FS) (*Providers, error) {
	all, problems, err := datafile.LoadAll("OAuth provider", func(p *Provider) string { return p.Name }, parse, dirs...)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		p, ok := all[name]
		if !ok {
			// Its name is not said: it may be what follows a comma in another one's secret.
			problems = append(problems, fmt.Errorf("OAuth client %d: there is no such provider: use one of %v, and in a secret %%2C for a comma", clients[name].nth, slices.Sorted(maps.Keys(all))))
			continue
		}
		p.Client = clients[name]
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return &Providers{all}, nil
}

// ParseClients reads the operator's setting: name=id or name=id:secret, separated by
// commas, with % before the hexadecimal code of a comma, colon or percent sign in an
// id or a secret. Its errors hold nothing of a secret.
func ParseClients(text string) (map[string]Client, error) {
	all := map[string]Client{}
	if strings.TrimSpace(text) == "" {
		return all, nil
	}
	for i, entry := range strings.Split(text, ",") {
		name, rest, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || !nameForm.MatchString(name) {
			return nil, fmt.Errorf("OAuth client %d: want provider=id or provider=id:secret", i+1)
		}
		if first, twice := all[name]; twice {
			return nil, fmt.Errorf("OAuth client %d: it is of the same provider as number %d", i+1, first.nth)
		}
		before, after, _ := strings.Cut(rest, ":")
		clientID, errID := url.PathUnescape(before)
		secret, errSecret := url.PathUnescape(after)
		if errID != nil || errSecret != nil || clientID == "" {
			return nil, fmt.Errorf("OAuth client %d: want provider=id or provider=id:secret, with %%25 for %%, %%3A for : and %%2C for a comma", i+1)
		}
		all[name] = Client{ID: clientID, Secret: vault.NewSecret(secret), nth: i + 1}
	}
	return all, nil
}

// parse reads one provider.
func parse(file string, text []byte) (*Provider, error) {
	var src source
	fields, err := datafile.Decode(file, text, &src)
	if err != nil {
		return nil, err
	}
	c := &checker{fields}
	p := c.provider(&src)
	if err := c.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// checker turns a source into a provider and notes what is wrong with it.
type checker struct{ *datafile.Checker }

var (
	nameForm      = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	accountForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	codeForm      = regexp.MustCompile(`^[a-z_]{1,64}$`)
	scopeForm     = regexp.MustCompile(`^[!#-\[\]-~]{1,256}$`) // RFC 6749, 3.3
	pathForm      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}$`)
	parameterForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

func (c *checker) provider(src *source) *Provider {
	p := &Provider{
		Name: src.Name, Account: cmp.Or(src.Account, src.Name), Profile: src.Profile,
		Authorize: c.endpoint("endpoints.authorize", src.Endpoints.Authorize), Token: c.endpoint("endpoints.token", src.Endpoints.Token),
		Device: c.endpoint("endpoints.device", src.Endpoints.Device), Revoke: c.endpoint("endpoints.revoke", src.Endpoints.Revoke),
		CodePage: c.endpoint("endpoints.code_page", src.Endpoints.CodePage),
		Client:   Client{ID: src.Client.ID}, Loopback: src.Client.Loopback, Auth: ClientAuth(src.Client.Auth), Encoding: Encoding(cmp.Or(src.Request.Encoding, string(Form))),
		Scopes: src.Scopes, AuthorizeParams: src.Request.Authorize, TokenParams: src.Request.Token, SendState: src.Request.State,
		Rotates: src.Tokens.Rotate, KillsAccess: src.Tokens.RefreshEndsAccess, Void: src.Errors,
		Title: src.Connection.Title, Whoami: c.whoami(src),
		Idle: c.duration("tokens.idle", src.Tokens.Idle), Ahead: cmp.Or(c.duration("tokens.ahead", src.Tokens.Ahead), defaultAhead),
	}
	if !nameForm.MatchString(p.Name) {
		c.Wrong("name", "%q is not a name: use lower-case letters, digits and dashes, 64 at most", p.Name)
	}
	if !accountForm.MatchString(p.Account) {
		c.Wrong("account", "%q is not a provider's name: use lower-case letters, digits and dashes, 32 at most", p.Account)
	}
	if !nameForm.MatchString(p.Profile) {
		c.Wrong("profile", "%q is not the name of a request profile, which the accounts need", p.Profile)
	}
	if p.Token == "" {
		c.Wrong("endpoints.token", "say where tokens are had: https://host/path")
	}
	if p.Authorize == "" && p.Device == "" {
		c.Wrong("endpoints", "nobody can sign in without authorize or device")
	}
	if p.Loopback && p.Authorize == "" {
		c.Wrong("client.loopback", "browsers come back from a page: say which, with endpoints.authorize")
	}
	if p.Auth != AuthNone && p.Auth != AuthBody && p.Auth != AuthBasic {
		c.Wrong("client.auth", "%q is unknown: use none (a public client), body or basic", src.Client.Auth)
	}
	if p.Encoding != Form && p.Encoding != JSON {
		c.Wrong("request.encoding", "%q is unknown: use form or json", src.Request.Encoding)
	}
	if utf8.RuneCountInString(p.Title) > maxTitle || strings.ContainsFunc(p.Title, unicode.IsControl) {
		c.Wrong("connection.title", "it is longer than %d characters, or holds a control character", maxTitle)
	}
	if p.Title != "" && p.Authorize == "" {
		c.Wrong("connection", "tools are connected in a browser: say where, with endpoints.authorize")
	}
	c.parameters("request.authorize", p.AuthorizeParams)
	c.parameters("request.token", p.TokenParams)
	c.list("scopes", p.Scopes, scopeForm, "a scope")
	c.list("errors", p.Void, codeForm, "an error code")
	return p
}

// headerForm is a header that says nothing of who asks.
var headerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

func (c *checker) whoami(src *source) Whoami {
	s := &src.Connection.Whoami
	w := Whoami{URL: c.endpoint("connection.whoami.url", s.URL), Headers: s.Headers, At: s.At}
	if (w.URL == "") != (len(w.At) == 0) {
		c.Wrong("connection.whoami", "it takes url, and in at where in the answer the name is, such as [user.name]")
	}
	c.list("connection.whoami.at", w.At, pathForm, "a path of names with dots between, such as user.name")
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		value := w.Headers[name]
		if !headerForm.MatchString(name) || name == "authorization" || name == "cookie" || name == "host" {
			c.Wrong("connection.whoami.headers."+name, "%q is not a header to set: use lower-case letters, digits and dashes, and none that names who asks", name)
		}
		if len(value) > 256 || strings.ContainsFunc(value, unicode.IsControl) {
			c.Wrong("connection.whoami.headers."+name, "the value is longer than 256 bytes, or holds a control character")
		}
	}
	return w
}

// ours are parameters that the broker itself decides about.
var ours = []string{
	"client_id", "client_secret", "code", "code_challenge", "code_challenge_method", "code_verifier", "device_code",
	"grant_type", "redirect_uri", "refresh_token", "response_type", "scope", "state", "token",
}

func (c *checker) parameters(field string, all map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path := field + "." + name
		// A parameter named code is Anthropic's own in an authorisation request, where
		// the protocol has none.
		reserved := slices.Contains(ours, name) && (field != "request.authorize" || name != "code")
		switch {
		case !parameterForm.MatchString(name):
			c.Wrong(path, "%q is not the name of a parameter", name)
		case reserved:
			c.Wrong(path, "%s is decided by the broker and cannot be given here", name)
		case len(all[name]) > 1024:
			c.Wrong(path, "the value is longer than 1024 bytes")
		}
	}
}

func (c *checker) list(field string, all []string, form *regexp.Regexp, what string) {
	if len(all) > maxScopes {
		c.Wrong(field, "%d entries are over the limit of %d", len(all), maxScopes)
	}
	for i, one := range all {
		if !form.MatchString(one) {
			c.Wrong(fmt.Sprintf("%s[%d]", field, i), "%q is not %s", one, what)
		}
	}
}

func (c *checker) endpoint(field, text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		c.Wrong(field, "want https://host/path")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		c.Wrong(field, "it must begin with https: tokens are sent there")
	case u.User != nil || u.Fragment != "":
		c.Wrong(field, "it must hold no user, password or #")
	}
	return text
}

func loopback(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

func (c *checker) duration(field, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTime {
		c.Wrong(field, "%q is not a time: use a number and a unit, such as 90s or 720h", text)
		return 0
	}
	return d
}
