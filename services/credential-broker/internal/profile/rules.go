package profile

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/transform"
	"signalbox.dev/services/credential-broker/internal/usage"
)

const (
	maxBlocks = 16
	maxBlock  = 16 << 10
	maxWords  = 64
	maxWord   = 200
	maxList   = 16
)

var (
	prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	memberForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,4}$`)
	paramForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// rules reads what is changed in bodies.
func (c *checker) rules(src *source) transform.Rules {
	r := transform.Rules{ToolPrefix: src.ToolPrefix, System: src.System.First}
	if src.ToolPrefix != "" && !prefixForm.MatchString(src.ToolPrefix) {
		c.Wrong("tool_prefix", "%q cannot begin the name of a tool: use letters, digits, - and _, 32 at most", src.ToolPrefix)
	}
	c.atMost("system.first", len(src.System.First), maxBlocks)
	for i, text := range src.System.First {
		if strings.TrimSpace(text) == "" || len(text) > maxBlock || !utf8.ValidString(text) {
			c.Wrong(fmt.Sprintf("system.first[%d]", i), "a block of the system prompt has a text of 1 to %d bytes", maxBlock)
		}
	}
	c.atMost("system.words", len(src.System.Words), maxWords)
	for i, w := range src.System.Words {
		field := fmt.Sprintf("system.words[%d]", i)
		kind := transform.Case(cmp.Or(w.Case, string(transform.Exact)))
		if !isWord(w.From) {
			c.Wrong(field+".from", "%q is not a word: it begins and ends with a letter or a digit and is in one line", clip(w.From))
		}
		if len(w.To) > maxWord || !utf8.ValidString(w.To) {
			c.Wrong(field+".to", "it is longer than %d bytes", maxWord)
		}
		if kind != transform.Exact && kind != transform.Any && kind != transform.Keep {
			c.Wrong(field+".case", "%q is not a rule for upper and lower case: use exact, any or keep", clip(w.Case))
		}
		r.Words = append(r.Words, transform.Word{From: w.From, To: w.To, Case: kind})
	}
	if !slices.ContainsFunc(src.Routes, func(r sourceRoute) bool { return r.Body != "" }) {
		for field, set := range map[string]bool{"tool_prefix": src.ToolPrefix != "", "system": len(src.System.First)+len(src.System.Words) > 0} {
			if set {
				c.Wrong(field, "no route has body: messages, so that it would change nothing; bodies of other APIs than Anthropic's Messages are not changed")
			}
		}
	}
	return r
}

func (c *checker) atMost(field string, n, limit int) {
	if n > limit {
		c.Wrong(field, "%d entries are over the limit of %d", n, limit)
	}
}

func isWord(text string) bool {
	first, _ := utf8.DecodeRuneInString(text)
	last, _ := utf8.DecodeLastRuneInString(text)
	edge := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	return utf8.ValidString(text) && len(text) <= maxWord && edge(first) && edge(last) && !strings.ContainsFunc(text, unicode.IsControl)
}

// query reads the parameters that a route adds.
func (c *checker) query(route string, src map[string]string) []Param {
	c.atMost(route+".query", len(src), maxList)
	var all []Param
	for _, name := range slices.Sorted(maps.Keys(src)) {
		if !paramForm.MatchString(name) || len(src[name]) > maxWord {
			c.Wrong(route+".query."+name, "%q is not the name of a parameter, or its value is longer than %d bytes", clip(name), maxWord)
			continue
		}
		all = append(all, Param{name, url.QueryEscape(src[name])})
	}
	return all
}

func (c *checker) usage(src *sourceUsage) *usage.Places {
	if src == nil {
		return nil
	}
	p := &usage.Places{
		At: c.members("usage.at", src.At), Input: c.members("usage.input", src.Input), Output: c.members("usage.output", src.Output),
		CacheRead: c.members("usage.cache_read", src.CacheRead), CacheWrite: c.members("usage.cache_write", src.CacheWrite),
	}
	if len(src.At) == 0 {
		c.Wrong("usage.at", "say in which members of an answer the counts are, such as [usage]")
	}
	c.atMost("usage", p.Members(), usage.MaxMembers)
	return p
}

func (c *checker) members(field string, list []string) []usage.Path {
	c.atMost(field, len(list), usage.MaxMembers)
	var out []usage.Path
	for i, text := range list {
		if !memberForm.MatchString(text) {
			c.Wrong(fmt.Sprintf("%s[%d]", field, i), "%q is not the name of a member, or several with dots between them", clip(text))
		}
		out = append(out, strings.Split(text, "."))
	}
	return out
}

func (c *checker) limits(src []sourceLimit) []Limit {
	c.atMost("limits", len(src), maxList)
	var out []Limit
	for i, l := range src {
		field := fmt.Sprintf("limits[%d]", i)
		if l.Reset == "" && l.Remaining == "" && l.Status == "" {
			c.Wrong(field, "name the headers: remaining or status, reset, or both")
		}
		if (l.Status == "") != (l.Used == "") {
			c.Wrong(field+".used", "a status goes with the word that it says when the limit is used up, such as {status: x-quota-status, used: rejected}")
		}
		if l.Status != "" && l.Remaining != "" {
			c.Wrong(field+".status", "a limit has remaining or status: make two of it")
		}
		limit := Limit{
			Remaining: http.CanonicalHeaderKey(l.Remaining), Status: http.CanonicalHeaderKey(l.Status), Used: l.Used, Reset: http.CanonicalHeaderKey(l.Reset),
		}
		for name, header := range map[string]string{"remaining": l.Remaining, "status": l.Status, "reset": l.Reset} {
			if header != "" && !headerForm.MatchString(header) {
				c.Wrong(field+"."+name, "%q is not the name of a header", clip(header))
			}
		}
		out = append(out, limit)
	}
	return out
}

// clip keeps what is quoted in a message short.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
