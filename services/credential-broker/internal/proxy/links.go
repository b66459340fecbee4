package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

// links are headers of an answer that name places.
var links = [...]string{"Location", "Content-Location", "Link"}

// places tells callers of places at the provider as they reach them: a caller that asked
// the provider itself would carry its token there.
type places struct {
	asked *url.URL   // a relative reference stands for a place beside it
	bases []*url.URL // the account's, and what the provider calls itself
	here  string     // what the caller writes for them
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

// through returns the URL at the proxy of the place that a reference names, false where
// that is not below one of the bases.
func (p *places) through(ref string) (string, bool) {
	u, err := p.asked.Parse(ref)
	if err != nil || u.User != nil {
		return "", false
	}
	for _, base := range p.bases {
		rest, below := strings.CutPrefix(u.EscapedPath(), base.EscapedPath())
		if !below || u.Scheme != base.Scheme || host(u) != host(base) || rest != "" && rest[0] != '/' {
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

// host returns a URL's host and port as one would not write it otherwise.
func host(u *url.URL) string {
	h := strings.ToLower(u.Host)
	if u.Scheme == "https" {
		return strings.TrimSuffix(h, ":443")
	}
	return strings.TrimSuffix(h, ":80")
}

// header returns the value of one of links with its places as the caller reaches them,
// and others as they are.
func (p *places) header(name, value string) string {
	if name != "Link" {
		if to, ok := p.through(value); ok {
			return to
		}
		return value
	}
	var b strings.Builder
	quoted := false
	for i := 0; i < len(value); i++ {
		b.WriteByte(value[i])
		switch c := value[i]; {
		case c == '\\' && quoted && i+1 < len(value):
			i++
			b.WriteByte(value[i])
		case c == '"':
			quoted = !quoted
		case c == '<' && !quoted:
			ref, _, closed := strings.Cut(value[i+1:], ">")
			if to, ok := p.through(ref); ok && closed {
				b.WriteString(to)
				i += len(ref)
			}
		}
	}
	return b.String()
}

// maxLinked bounds an answer that has to be held for the URLs in it.
const maxLinked = 1 << 20

// relink leads the caller through the proxy where an answer has URLs that its client
// follows. A larger one stays as it is.
func (a *answer) relink() (*answer, *refusal) {
	body, r := a.hold(maxLinked)
	if r != nil {
		return a.fail(r, r.reason)
	}
	if len(body) > maxLinked {
		a.head = body
		return a, nil
	}
	return a.edited(body, a.places().edits(body, a.route.URLs))
}

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

// redirected refuses an answer that sends the caller to where the proxy does not lead: it
// would carry its token to a stranger. One that leads through the proxy, or nowhere, is
// the caller's to read.
func (a *answer) redirected() *refusal {
	x, to := a.x, a.res.Header["Location"]
	switch status := a.res.StatusCode; {
	case status == http.StatusSwitchingProtocols:
	case status < 300 || status >= 400 || status == http.StatusNotModified || len(to) == 0:
		return nil
	default:
		p := a.places()
		asked, _ := p.through(a.url.String())
		// One to itself, by another of its names, would come back here for ever.
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

// quotes reports whether a header's value holds the credential, also as URLs write it.
func quotes(value, secret string) bool {
	if len(secret) < minEcho {
		return false
	}
	if strings.Contains(value, secret) {
		return true
	}
	if strings.IndexByte(value, '%') < 0 {
		return false
	}
	return slices.ContainsFunc([]func(string) (string, error){url.QueryUnescape, url.PathUnescape}, func(read func(string) (string, error)) bool {
		plain, err := read(value)
		return err == nil && strings.Contains(plain, secret)
	})
}
