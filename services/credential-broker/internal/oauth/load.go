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

// Load reads every *.yaml file at the root of each of dirs. A provider in a later directory
// replaces one of the same name in an earlier one; within a directory names are unique.
// clients, by provider, take precedence over the files; one for an unknown provider is an
// error. The error joins all problems, one line for each, with file, line and field.
func Load(clients map[string]Client, dirs ...fs.FS) (*Providers, error) {
	all, problems, err := datafile.LoadAll("OAuth provider", func(p *Provider) string { return p.Name }, parse, dirs...)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		p, ok := all[name]
		if !ok {
			// The name is left out: it may be what follows a comma in another one's secret.
			problems = append(problems, fmt.Errorf("OAuth client %d: there is no such provider: use one of %v, and write a comma in a secret as %%2C", clients[name].position, slices.Sorted(maps.Keys(all))))
			continue
		}
		p.Client = clients[name]
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return &Providers{all}, nil
}

// ParseClients reads the operator's setting: name=id or name=id:secret, separated by commas,
// with a comma, colon or percent sign in an id or a secret percent-encoded. Its errors hold no
// part of a secret.
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
			return nil, fmt.Errorf("OAuth client %d: client %d is for the same provider", i+1, first.position)
		}
		before, after, _ := strings.Cut(rest, ":")
		clientID, errID := url.PathUnescape(before)
		secret, errSecret := url.PathUnescape(after)
		if errID != nil || errSecret != nil || clientID == "" {
			return nil, fmt.Errorf("OAuth client %d: want provider=id or provider=id:secret, with %%25 for %%, %%3A for : and %%2C for a comma", i+1)
		}
		all[name] = Client{ID: clientID, Secret: vault.NewSecret(secret), position: i + 1}
	}
	return all, nil
}

// parse reads one provider.
func parse(file string, text []byte) (*Provider, error) {
	p := &Provider{}
	fields, err := datafile.Decode(file, text, p)
	if err != nil {
		return nil, err
	}
	c := &checker{fields}
	c.provider(p)
	return p, c.Err()
}

// checker checks a provider and sets its defaults.
type checker struct{ *datafile.Checker }

var (
	nameForm      = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	accountForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	codeForm      = regexp.MustCompile(`^[a-z_]{1,64}$`)
	scopeForm     = regexp.MustCompile(`^[!#-\[\]-~]{1,256}$`) // RFC 6749, 3.3
	pathForm      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}$`)
	parameterForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

func (c *checker) provider(p *Provider) {
	p.Account, p.Encoding = cmp.Or(p.Account, p.Name), cmp.Or(p.Encoding, Form)
	p.Idle, p.Ahead = c.duration("tokens.idle", p.IdleText), cmp.Or(c.duration("tokens.ahead", p.AheadText), defaultAhead)
	c.endpoint("endpoints.authorize", p.Authorize)
	c.endpoint("endpoints.token", p.Token)
	c.endpoint("endpoints.device", p.Device)
	c.endpoint("endpoints.revoke", p.Revoke)
	c.endpoint("endpoints.code_page", p.CodePage)
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
		c.Wrong("endpoints.token", "give the URL that issues tokens: https://host/path")
	}
	if p.Authorize == "" && p.Device == "" {
		c.Wrong("endpoints", "set authorize or device: without them nobody can sign in")
	}
	if p.Loopback && p.Authorize == "" {
		c.Wrong("client.loopback", "browsers are redirected from a page: give its URL in endpoints.authorize")
	}
	if p.Auth != AuthNone && p.Auth != AuthBody && p.Auth != AuthBasic {
		c.Wrong("client.auth", "%q is unknown: use none (a public client), body or basic", p.Auth)
	}
	if p.Encoding != Form && p.Encoding != JSON {
		c.Wrong("request.encoding", "%q is unknown: use form or json", p.Encoding)
	}
	if utf8.RuneCountInString(p.Title) > maxTitle || strings.ContainsFunc(p.Title, unicode.IsControl) {
		c.Wrong("connection.title", "it is longer than %d characters, or holds a control character", maxTitle)
	}
	if p.Title != "" && p.Authorize == "" {
		c.Wrong("connection", "tools are connected in a browser: give the page's URL in endpoints.authorize")
	}
	c.parameters("request.authorize", p.AuthorizeParams)
	c.parameters("request.token", p.TokenParams)
	c.list("scopes", p.Scopes, scopeForm, "a scope")
	c.list("errors", p.Void, codeForm, "an error code")
	c.whoami(&p.Whoami)
}

var headerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

func (c *checker) whoami(w *Whoami) {
	c.endpoint("connection.whoami.url", w.URL)
	if (w.URL == "") != (len(w.At) == 0) {
		c.Wrong("connection.whoami", "set url, and set at to where in the answer the name is, such as [user.name]")
	}
	c.list("connection.whoami.at", w.At, pathForm, "a path of names separated by dots, such as user.name")
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		value := w.Headers[name]
		if !headerForm.MatchString(name) || name == "authorization" || name == "cookie" || name == "host" {
			c.Wrong("connection.whoami.headers."+name, "%q is not a header to set: use lower-case letters, digits and dashes, and no header that identifies the caller", name)
		}
		if len(value) > 256 || strings.ContainsFunc(value, unicode.IsControl) {
			c.Wrong("connection.whoami.headers."+name, "the value is longer than 256 bytes, or holds a control character")
		}
	}
}

// reserved are parameters that the broker itself sets.
var reserved = []string{
	"client_id", "client_secret", "code", "code_challenge", "code_challenge_method", "code_verifier", "device_code",
	"grant_type", "redirect_uri", "refresh_token", "response_type", "scope", "state", "token",
}

func (c *checker) parameters(field string, all map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path := field + "." + name
		// A parameter named code is Anthropic's own in an authorisation request, where
		// the protocol has none.
		ours := slices.Contains(reserved, name) && (field != "request.authorize" || name != "code")
		switch {
		case !parameterForm.MatchString(name):
			c.Wrong(path, "%q is not the name of a parameter", name)
		case ours:
			c.Wrong(path, "%s is set by the broker and cannot be given here", name)
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

func (c *checker) endpoint(field, text string) {
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		c.Wrong(field, "want https://host/path")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		c.Wrong(field, "it must begin with https: tokens are sent there")
	case u.User != nil || u.Fragment != "":
		c.Wrong(field, "it must not contain a user, a password or #")
	}
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
