package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"
)

// functions returns the functions that templates may call besides the comparisons.
func functions() template.FuncMap {
	return template.FuncMap{
		"json":     toJSON,
		"upper":    strings.ToUpper,
		"lower":    strings.ToLower,
		"title":    title,
		"trim":     strings.TrimSpace,
		"default":  orDefault,
		"join":     join,
		"truncate": truncate,
		"count":    count,
		"story":    story,
		"article":  article,
		"zone":     zone,
		"find":     find,
		"get":      get,
		"first":    first,
	}
}

// known reports whether a template may use a function: one of functions, or one of
// text/template that always ends soon.
func known(name string) bool {
	switch name {
	case "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "print":
		return true
	default:
		_, ok := functions()[name]
		return ok
	}
}

func toJSON(v any) (string, error) {
	b, err := appendJSON(nil, v)
	return string(b), err
}

// title capitalizes the first letter.
func title(s string) string {
	s = strings.TrimSpace(s)
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}

func orDefault(d, v any) any {
	if v == nil || v == "" {
		return d
	}
	return v
}

func join(sep string, list any) (string, error) {
	switch l := list.(type) {
	case []string:
		return strings.Join(l, sep), nil
	case []any:
		parts := make([]string, len(l))
		for i, v := range l {
			parts[i] = fmt.Sprint(v)
		}
		return strings.Join(parts, sep), nil
	default:
		return "", fmt.Errorf("join: %T is not a list", list)
	}
}

func truncate(n int, s string) string {
	if n < 0 || utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	return strings.TrimSpace(string(r[:n])) + "…"
}

// whole converts a template's value to an integer: an int, a json.Number or digits.
func whole(v any, most int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(fmt.Sprint(v)))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%v is not a whole number", v)
	}
	return min(n, most), nil
}

// count returns the numbers from 1 to n, at most 10,000, ten to a line.
func count(v any) (string, error) {
	n, err := whole(v, 10_000)
	if err != nil {
		return "", fmt.Errorf("count: %w", err)
	}
	var b []byte
	for i := 1; i <= n; i++ {
		b = strconv.AppendInt(b, int64(i), 10)
		switch {
		case i == n:
		case i%10 == 0:
			b = append(b, '\n')
		default:
			b = append(b, ' ')
		}
	}
	return string(b), nil
}

// find returns the first element of a list of objects whose field contains needle, ignoring
// case, or nil.
func find(list any, field, needle string) any {
	l, ok := list.([]any)
	if !ok {
		return nil
	}
	needle = strings.ToLower(strings.TrimSpace(needle))
	for _, v := range l {
		m, ok := v.(map[string]any)
		if ok && strings.Contains(strings.ToLower(fmt.Sprint(m[field])), needle) {
			return m
		}
	}
	return nil
}

// get returns the value at a path of keys, or nil.
func get(v any, keys ...string) any {
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

// first returns at most n elements of a list.
func first(n int, list any) []any {
	l, ok := list.([]any)
	if !ok || n < 0 {
		return nil
	}
	return l[:min(n, len(l))]
}

// zone returns the IANA time zone of a well-known place. It returns anything else unchanged,
// so that the tool checks it.
func zone(place string) string {
	place = strings.Trim(strings.TrimSpace(place), "?!. ")
	if strings.Contains(place, "/") {
		return place
	}
	switch strings.ToLower(place) {
	case "":
		return ""
	case "utc", "gmt":
		return "UTC"
	case "london", "england", "the uk", "uk":
		return "Europe/London"
	case "berlin", "germany":
		return "Europe/Berlin"
	case "paris", "france":
		return "Europe/Paris"
	case "madrid", "spain":
		return "Europe/Madrid"
	case "rome", "italy":
		return "Europe/Rome"
	case "zurich", "zürich", "switzerland":
		return "Europe/Zurich"
	case "new york", "boston", "washington":
		return "America/New_York"
	case "chicago":
		return "America/Chicago"
	case "san francisco", "los angeles", "seattle", "california":
		return "America/Los_Angeles"
	case "são paulo", "sao paulo", "brazil":
		return "America/Sao_Paulo"
	case "tokyo", "japan":
		return "Asia/Tokyo"
	case "singapore":
		return "Asia/Singapore"
	case "delhi", "mumbai", "india":
		return "Asia/Kolkata"
	case "shanghai", "beijing", "china":
		return "Asia/Shanghai"
	case "sydney":
		return "Australia/Sydney"
	default:
		return place
	}
}

// story returns n words, at most 10,000, the same ones each time.
func story(v any) (string, error) {
	n, err := whole(v, 10000)
	if err != nil {
		return "", fmt.Errorf("story: %w", err)
	}
	who := []string{"The signalman", "Old Marta", "The night train", "A boy with a lantern", "The stationmaster", "The fox behind the shed"}
	did := []string{"waited for", "listened to", "remembered", "followed", "wrote down", "dreamed of", "walked towards"}
	what := []string{"the last lamp of the line", "a bell that nobody had rung", "the river under the bridge", "the letter from the coast", "a signal that stayed green"}
	and := []string{"and the rails began to sing.", "while the snow covered the points.", "until the kettle boiled over.", "because somebody had to.", "and nothing was ever lost again.", "as the clock struck in the empty hall."}
	var b strings.Builder
	words := 0
	for i := 0; words < n; i++ {
		if i > 0 && i%60 == 0 {
			fmt.Fprintf(&b, "\n\n## Chapter %d\n\n", i/60+1)
		} else if i > 0 && i%6 == 0 {
			b.WriteString("\n\n")
		} else if i > 0 {
			b.WriteByte(' ')
		}
		s := strings.Join([]string{who[i*5%len(who)], did[(i*3+i/7)%len(did)], what[(i*2+i/5)%len(what)], and[(i+i/6)%len(and)]}, " ")
		b.WriteString(s)
		words += len(strings.Fields(s))
	}
	return b.String(), nil
}

// article returns a few hundred words of Markdown about a topic, for documents.
func article(topic string) string {
	topic = strings.TrimSpace(topic)
	name := title(topic)
	return "# " + name + "\n\n" +
		"This document collects what a team needs to know about **" + topic + "**. It was written by the simulated provider, " +
		"so its facts are only examples, but its shape is that of a real one: change it, append to it, or ask for an edit.\n\n" +
		"## Summary\n\n" +
		"People meet " + topic + " sooner than they expect. A short text that everybody has read beats a long one that nobody has, " +
		"so the points that matter come first and the details follow.\n\n" +
		"## Why it matters\n\n" +
		"- It touches daily work, often before anybody has planned for it.\n" +
		"- Decisions about it are cheap early and expensive late.\n" +
		"- Somebody who is new to the team asks about it in the first week.\n\n" +
		"## How to begin\n\n" +
		"1. Write down what you already know about " + topic + ", in plain words.\n" +
		"2. Mark what is a fact and what is a guess.\n" +
		"3. Talk to one person who has done it before.\n" +
		"4. Try the smallest step that could teach you something, and note what happened.\n\n" +
		"## Compared\n\n" +
		"| approach | good for | watch out for |\n" +
		"| --- | --- | --- |\n" +
		"| start small | learning quickly | stopping too early |\n" +
		"| plan first | many people involved | plans that age |\n" +
		"| copy what works | well-known ground | reasons that do not carry over |\n\n" +
		"## Open questions\n\n" +
		"- Who looks after " + topic + " when the people who began have moved on?\n" +
		"- Which number would show that it goes well?\n" +
		"- What would make us stop?\n\n" +
		"> A good document about " + topic + " is one that somebody improves next month.\n"
}

// plain decodes JSON for templates.
func plain(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}
