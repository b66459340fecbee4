package price

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	maxPrice = 1_000_000 // dollars for a million tokens
	maxName  = 128
)

var providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

// entry is a price in a file.
type entry struct {
	Provider   string   `json:"provider"`
	Model      string   `json:"model"`
	Input      *float64 `json:"input"`
	Output     *float64 `json:"output"`
	CacheRead  *float64 `json:"cache_read"`
	CacheWrite *float64 `json:"cache_write"`
}

// parser parses a file and collects its problems.
type parser struct {
	file     string
	text     []byte
	problems []error
}

func parse(file string, text []byte) (table, error) {
	p := &parser{file: file, text: text}
	t := table{exact: map[model]Price{}, families: map[string][]family{}}
	seen := map[model]bool{}
	at := 0
	for i, raw := range p.entries() {
		// Raw entries are verbatim parts of the file, in order.
		at += bytes.Index(text[at:], raw)
		e := element{p, fmt.Sprintf("prices[%d]", i), at, raw}
		at += len(raw)
		m, price, ok := e.read()
		if !ok {
			continue
		}
		if seen[m] {
			e.wrong("model", "%s of %s has a price already", m.name, m.provider)
			continue
		}
		seen[m] = true
		if prefix, open := strings.CutSuffix(m.name, "*"); open {
			t.families[m.provider] = append(t.families[m.provider], family{prefix, price})
		} else {
			t.exact[m] = price
		}
	}
	for _, all := range t.families {
		slices.SortFunc(all, func(a, b family) int { return cmp.Compare(len(b.prefix), len(a.prefix)) })
	}
	return t, errors.Join(p.problems...)
}

// entries returns the elements of the file's list.
func (p *parser) entries() []json.RawMessage {
	var f struct {
		Prices []json.RawMessage `json:"prices"`
	}
	// First the whole file: only the errors of that have offsets in the file.
	err := json.Unmarshal(p.text, &json.RawMessage{})
	if err == nil {
		err = strict(p.text, &f)
	}
	if err != nil {
		p.report(0, p.text, "", err)
	}
	return f.Prices
}

func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// report adds an error of encoding/json about the part of the file at an offset.
func (p *parser) report(at int, part []byte, path string, err error) {
	message := strings.TrimPrefix(err.Error(), "json: ")
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		at += int(min(e.Offset, int64(len(part))))
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at += int(min(e.Offset, int64(len(part))))
		path = strings.Trim(path+"."+e.Field, ".")
		message = fmt.Sprintf("%s is not valid here: use %s", e.Value, kindOf(e.Field))
	}
	if _, name, ok := strings.Cut(message, "unknown field "); ok {
		at += max(bytes.Index(part, []byte(name)), 0)
		path = strings.TrimPrefix(path+"."+strings.Trim(name, `"`), ".")
		message = "unknown field: use provider, model, input, output, cache_read and cache_write in a list named prices"
	}
	if path != "" {
		path += ": "
	}
	p.problems = append(p.problems, fmt.Errorf("%s:%d: %s%s", p.file, p.line(at), path, message))
}

// kindOf describes the values of a field.
func kindOf(field string) string {
	switch field {
	case "provider", "model":
		return "a text"
	case "input", "output", "cache_read", "cache_write":
		return "a number of dollars"
	}
	return `{"prices": [{"provider": …, "model": …, "input": …, "output": …}]}`
}

func (p *parser) line(at int) int {
	return 1 + bytes.Count(p.text[:min(at, len(p.text))], []byte("\n"))
}

// element is an entry and its place in the file.
type element struct {
	p    *parser
	path string
	at   int
	raw  []byte
}

// wrong adds a problem with a field.
func (e *element) wrong(field, format string, args ...any) {
	at := e.at + max(bytes.Index(e.raw, []byte(`"`+field+`"`)), 0)
	e.p.problems = append(e.p.problems, fmt.Errorf("%s:%d: %s.%s: %s", e.p.file, e.p.line(at), e.path, field, fmt.Sprintf(format, args...)))
}

// read parses the entry; ok is false after a problem.
func (e *element) read() (m model, price Price, ok bool) {
	before := len(e.p.problems)
	var src entry
	if err := strict(e.raw, &src); err != nil {
		e.p.report(e.at, e.raw, e.path, err)
		return m, price, false
	}
	if !providerForm.MatchString(src.Provider) {
		e.wrong("provider", "%q is not a provider's name: use lower-case letters, digits and dashes", clip(src.Provider))
	}
	if rest := strings.TrimSuffix(src.Model, "*"); src.Model == "" || len(src.Model) > maxName || strings.Contains(rest, "*") {
		e.wrong("model", "%q is not the id of a model: it may end in *, which matches any rest", clip(src.Model))
	}
	price = Price{Input: e.amount("input", src.Input, nil), Output: e.amount("output", src.Output, nil)}
	price.CacheRead = e.amount("cache_read", src.CacheRead, src.Input)
	price.CacheWrite = e.amount("cache_write", src.CacheWrite, src.Input)
	return model{src.Provider, src.Model}, price, len(e.p.problems) == before
}

// amount returns the value of a field, or a default.
func (e *element) amount(field string, v, otherwise *float64) float64 {
	switch {
	case v == nil && otherwise != nil:
		return *otherwise
	case v == nil && (field == "input" || field == "output"):
		e.wrong(field, "missing: use the price of a million tokens, 0 if they are free")
		return 0
	case v == nil:
		return 0
	case *v < 0 || *v > maxPrice:
		e.wrong(field, "%g is not a price: use dollars per million tokens, up to %d", *v, maxPrice)
	}
	return *v
}

// clip shortens a text that is quoted in a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
