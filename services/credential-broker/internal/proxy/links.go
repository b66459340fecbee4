package proxy

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

// links are headers of an answer that hold URLs.
var links = [...]string{"Location", "Content-Location", "Link"}

// places rewrites the provider's URLs so that callers reach them through the proxy: a caller
// that asked the provider directly would send its token there.
type places struct {
	asked *url.URL   // to which references are relative
	bases []*url.URL // the account's, and what the provider calls itself
	here  string     // the caller's URL for them
}

func (a *answer) places() *places {
	x := a.x
	p := &places{asked: a.url, bases: []*url.URL{x.account.Base}, here: "http"}
	if own := x.account.Profile.BaseURL; own != nil {
		p.bases = append(p.bases, own)
	}
	if x.r.TLS != nil || x.r.Header.Get("X-Forwarded-Proto") == "https" {
		p.here = "https"
	}
	p.here += "://" + x.r.Host + Prefix + x.provider + x.mount
	return p
}

// through returns the proxy's URL for a reference; false if that is not below one of the
// bases.
func (p *places) through(ref string) (string, bool) {
	u, err := p.asked.Parse(ref)
	if err != nil || u.User != nil {
		return "", false
	}
	for _, base := range p.bases {
		rest, below := strings.CutPrefix(u.EscapedPath(), base.EscapedPath())
		if !below || u.Scheme != base.Scheme || canonicalHost(u) != canonicalHost(base) || rest != "" && rest[0] != '/' {
			continue
		}
		if u.RawQuery != "" {
			rest += "?" + u.RawQuery
		}
		if u.Fragment != "" {
			rest += "#" + u.EscapedFragment()
		}
		return p.here + rest, true
	}
	return "", false
}

// canonicalHost returns a URL's host in lower case, without the scheme's default port.
func canonicalHost(u *url.URL) string {
	h := strings.ToLower(u.Host)
	if u.Scheme == "https" {
		return strings.TrimSuffix(h, ":443")
	}
	return strings.TrimSuffix(h, ":80")
}

// header returns the value of one of links, rewritten.
func (p *places) header(name, value string) string {
	if name != "Link" {
		if to, ok := p.through(value); ok {
			return to
		}
		return value
	}
	return linkTarget.ReplaceAllStringFunc(value, func(part string) string {
		to, ok := p.through(strings.Trim(part, "<>"))
		if part[0] != '<' || !ok {
			return part
		}
		return "<" + to + ">"
	})
}

// linkTarget matches the URLs in a Link header (RFC 8288), and quoted strings, which may hold
// what looks like one.
var linkTarget = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|<[^>]*>`)

// edits rewrites the URLs in members of an object, or of the objects in its list "data".
func (p *places) edits(body []byte, members []string) (edits transform.Edits) {
	s := scan.New(body)
	var object func(list bool)
	object = func(list bool) {
		for name := range s.Members() {
			switch {
			case list && s.Is(name, "data"):
				for range s.Elements() {
					object(false)
				}
			case s.Kind() == '"' && slices.ContainsFunc(members, func(m string) bool { return s.Is(name, m) }):
				at, _ := s.String()
				text := string(scan.Text(s.Bytes(at)))
				if to, ok := p.through(text); ok && strings.Contains(text, "://") {
					edits = append(edits, transform.Edit{At: at.From, Remove: at.To - at.From, Insert: scan.Quote(to)})
				}
			}
		}
	}
	object(true)
	if s.Bad() {
		return nil
	}
	return edits
}

// redirected refuses an answer that sends the caller outside the proxy, because it would take
// its token to a stranger. A redirect within the proxy, or without a place, is the caller's to
// follow.
func (a *answer) redirected() *refusal {
	x, to := a.x, a.res.Header["Location"]
	switch status := a.res.StatusCode; {
	case status == http.StatusSwitchingProtocols:
	case status < 300 || status >= 400 || status == http.StatusNotModified || len(to) == 0:
		return nil
	default:
		p := a.places()
		asked, _ := p.through(a.url.String())
		// A redirect to another of the provider's own names would lead back here for ever.
		if there, ok := p.through(to[0]); ok && there != asked && len(to) == 1 && !quotes(to[0], x.account.Secret.Reveal()) {
			return nil
		}
	}
	message := "the provider " + x.provider + " answered with a redirect, which is not followed"
	if len(to) == 1 {
		if u, err := a.url.Parse(to[0]); err == nil && (u.Scheme == "https" || u.Scheme == "http") {
			message += ": moved to " + x.scrub(u.Scheme+"://"+u.Host)
		}
	}
	if own := x.account.Profile.BaseURL; own == nil || x.account.Base.String() != own.String() {
		message += "; check the account's base URL"
	}
	r := refused(http.StatusBadGateway, "provider_redirected", message, nil)
	r.outcome = outcomeServerError
	return r
}

// quotes reports whether a header's value holds the credential, also if it is escaped as in a
// URL.
func quotes(value, secret string) bool {
	if len(secret) < minEcho {
		return false
	}
	query, _ := url.QueryUnescape(value)
	path, _ := url.PathUnescape(value)
	return slices.ContainsFunc([]string{value, query, path}, func(v string) bool { return strings.Contains(v, secret) })
}
