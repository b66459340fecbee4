package script

import (
	"encoding/json"
	"slices"

	"signalbox.dev/services/simulator/internal/chat"
)

// scene is a request as the conditions and templates of a script see it.
type scene struct {
	req   *chat.Request
	ex    chat.Exchange
	match map[string]string
	data  map[string]any // built for the first template
}

func newScene(req *chat.Request) *scene {
	return &scene{req: req, ex: req.Exchange()}
}

// holds reports whether all conditions hold. It stores the groups of their patterns in s.match.
func (w *When) holds(s *scene) bool {
	s.match = map[string]string{}
	return w.asked(s) && w.offered(s) && w.so(s) && w.result(s)
}

func (w *When) asked(s *scene) bool {
	for _, c := range []struct {
		p    *Pattern
		text string
	}{{w.User, s.ex.User}, {w.System, s.req.System}, {w.Model, s.req.Model}, {w.Key, s.req.Key}} {
		if c.p != nil && !c.p.groups(c.text, s.match) {
			return false
		}
	}
	if w.File == nil {
		return true
	}
	return slices.ContainsFunc(s.ex.Files, func(f chat.Part) bool { return w.File.groups(f.Media, s.match) })
}

func (w *When) offered(s *scene) bool {
	for _, t := range w.Tool {
		if !s.req.Offers(t) {
			return false
		}
	}
	return !slices.ContainsFunc(w.Missing, s.req.Offers)
}

func (w *When) so(s *scene) bool {
	is := func(want *bool, got bool) bool { return want == nil || *want == got }
	return is(w.Thinking, s.req.Thinking) && is(w.Stream, s.req.Stream) && is(w.Continued, s.ex.Continued) &&
		(w.Turn == 0 || w.Turn == s.ex.Turn) &&
		(len(w.Dialect) == 0 || slices.Contains(w.Dialect, string(s.req.Dialect)))
}

func (w *When) result(s *scene) bool {
	for _, tool := range w.Known {
		named := func(r chat.Result) bool { return r.Tool == tool && !r.Failed() }
		if !slices.ContainsFunc(s.ex.Earlier, named) && !slices.ContainsFunc(s.ex.Results, named) {
			return false
		}
	}
	if w.Result == nil {
		return true
	}
	return slices.ContainsFunc(s.ex.Latest, func(r chat.Result) bool {
		return (w.Result.Tool == "" || w.Result.Tool == r.Tool) &&
			(w.Result.Error == nil || *w.Result.Error == r.Failed()) &&
			(w.Result.Match == nil || w.Result.Match.groups(r.Text, s.match))
	})
}

// values returns the data of templates.
func (s *scene) values() map[string]any {
	if s.data != nil {
		return s.data
	}
	var tools, files []any
	for _, t := range s.req.Tools {
		tools = append(tools, t.Name)
	}
	for _, f := range s.ex.Files {
		files = append(files, map[string]any{"media": f.Media, "bytes": f.Bytes, "url": f.URL})
	}
	last := map[string]any{}
	for _, r := range s.ex.Earlier {
		if !r.Failed() {
			last[r.Tool] = r.Value()
		}
	}
	result := map[string]any{}
	for _, r := range s.ex.Results {
		result[r.Tool] = r.Value()
		if !r.Failed() {
			last[r.Tool] = result[r.Tool]
		}
	}
	s.data = map[string]any{
		"user": s.ex.User, "system": s.req.System, "model": s.req.Model, "dialect": string(s.req.Dialect),
		"turn": s.ex.Turn, "match": s.match, "tools": tools, "files": files,
		"result": result, "last": last, "results": resultList(s.ex.Results), "latest": resultList(s.ex.Latest),
	}
	return s.data
}

func resultList(results []chat.Result) []any {
	var out []any
	for _, r := range results {
		out = append(out, map[string]any{
			"tool": r.Tool, "id": r.ID, "args": plain(r.Args), "value": r.Value(), "text": r.Text, "error": failure(r),
		})
	}
	return out
}

// failure returns the message of a failed result, or "".
func failure(r chat.Result) string {
	if !r.Failed() {
		return ""
	}
	m, ok := r.Value().(map[string]any)
	if !ok {
		return r.Text
	}
	switch e := m["error"].(type) {
	case string:
		return e
	case nil:
		return r.Text
	default:
		b, err := json.Marshal(e)
		if err != nil {
			return r.Text
		}
		return string(b)
	}
}
