package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// call is a tool call that is being received.
type call struct {
	index   int64 // the server's, or -1
	id      string
	newID   bool // id was generated here
	name    string
	args    []byte // raw string
	dec     jscan.Decoder
	more    jscan.Merged // members of the call other than id, type, function and index
	started bool

	parsed  json.RawMessage
	invalid bool
}

// fragment is an element of tool_calls in a delta.
type fragment struct {
	index    int64
	hasIndex bool
	id, name jscan.Str
	args     jscan.Str
	object   []byte // arguments that came as an object instead of a string
	rest     []jscan.Edit
}

func (f *fragment) read(r *jscan.Reader) {
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "index":
			f.index, f.hasIndex = r.Int()
		case "id":
			f.id, _ = r.Str()
		case "type":
			r.Skip()
		case "function":
			if !r.Object() {
				continue
			}
			for key, ok := r.Key(); ok; key, ok = r.Key() {
				switch string(key) {
				case "name":
					f.name, _ = r.Str()
				case "arguments":
					if r.Kind() == jscan.Object {
						f.object = r.Skip()
					} else {
						f.args, _ = r.Str()
					}
				default:
					r.Skip()
				}
			}
		default:
			name := string(key)
			f.rest = append(f.rest, jscan.Edit{Name: name, Value: r.Skip()})
		}
	}
}

func (d *Decoder) addCalls(r *jscan.Reader, out []llm.Event) ([]llm.Event, error) {
	if !r.Array() {
		return out, nil
	}
	for r.Elem() {
		if !r.Object() {
			continue
		}
		var f fragment
		f.read(r)
		var err error
		if out, err = d.addCall(&f, out); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (d *Decoder) addCall(f *fragment, out []llm.Event) ([]llm.Event, error) {
	c, at := d.callFor(f)
	if c == nil {
		if len(d.calls) >= d.limits.Calls {
			return out, llm.OverLimit("it has more than %d tool calls", d.limits.Calls)
		}
		c, at = d.newCall(f), len(d.calls)-1
	}
	if len(f.name.Raw) > 0 && (!c.started || !f.name.Is(c.name)) {
		c.name += f.name.String() // unless the server repeats the whole name
	}
	for _, m := range f.rest {
		if !c.more.Add(m.Name, m.Value) {
			return out, llm.OverLimit("a tool call has too many different members")
		}
	}
	if !c.started && c.name != "" {
		c.started = true
		out = append(out, llm.Event{Type: llm.ToolCallStart, Index: at, ID: c.id, Name: c.name})
	}
	args := f.args
	if f.object != nil {
		args = jscan.Str{Raw: jscan.AppendEscaped(nil, f.object), Escaped: true}
	}
	if len(args.Raw) == 0 {
		return out, nil
	}
	c.args = append(c.args, args.Raw...)
	if !c.started {
		return out, nil
	}
	n := len(out)
	if out = d.emit(&c.dec, llm.ToolCallDelta, at, args, out); len(out) > n {
		out[n].ID, out[n].Name = c.id, c.name
	}
	return out, nil
}

// hasArgs reports whether the fragment has arguments.
func (f *fragment) hasArgs() bool { return len(f.args.Raw) > 0 || f.object != nil }

// whole reports whether the call's arguments are a complete JSON object.
func (c *call) whole() bool {
	if !bytes.HasSuffix(bytes.TrimRight(c.args, " "), []byte("}")) {
		return false
	}
	text := c.written()
	return jscan.KindOf(text) == jscan.Object && jscan.Valid(text)
}

// callFor returns the call that a fragment continues, or nil for a new one. The index decides if
// there is one. However, a fragment with a name and another id, or with a name and arguments
// after complete arguments, begins another call whatever its index, because some servers number
// all calls 0. Without an index the id decides, and without both it continues the last call.
func (d *Decoder) callFor(f *fragment) (*call, int) {
	other := func(c *call) bool {
		switch {
		case len(f.name.Raw) == 0:
			return false
		case len(f.id.Raw) > 0 && !c.newID:
			return !f.id.Is(c.id)
		}
		return f.hasArgs() && c.whole()
	}
	for i, c := range slices.Backward(d.calls) {
		switch {
		case f.hasIndex && c.index == max(f.index, 0):
			if other(c) {
				return nil, 0
			}
			return c, i
		case !f.hasIndex && len(f.id.Raw) > 0:
			if f.id.Is(c.id) {
				return c, i
			}
		case !f.hasIndex:
			if other(c) {
				return nil, 0
			}
			return c, i
		}
	}
	return nil, 0
}

func (d *Decoder) newCall(f *fragment) *call {
	c := &call{index: -1}
	if f.hasIndex {
		c.index = max(f.index, 0) // some servers send -1 for a single call
	}
	c.id = f.id.String()
	if d.ids == nil {
		d.ids = make(map[string]bool)
	}
	if c.id == "" || d.ids[c.id] {
		c.id, c.newID = llm.CallID(d.seed, d.id, len(d.calls)), true
	}
	d.ids[c.id] = true
	d.calls = append(d.calls, c)
	return c
}

func (c *call) written() []byte { return jscan.AppendUnescaped(nil, c.args) }

// finish sets the final name and arguments. A call without a name remains a call, which is
// answered with an error.
func (c *call) finish() {
	c.name = cmp.Or(c.name, "unnamed")
	c.parsed, c.invalid = llm.Arguments(c.written())
}

// appendRaw appends the call for the provider. The arguments stay the model's own text if that
// is JSON, because servers parse it again.
func (c *call) appendRaw(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = jscan.AppendString(dst, c.id)
	dst = append(dst, `,"type":"function","function":{"name":`...)
	dst = jscan.AppendString(dst, c.name)
	dst = append(dst, `,"arguments":`...)
	if text := c.written(); c.invalid || jscan.KindOf(text) != jscan.Object {
		dst = jscan.AppendString(dst, c.parsed)
	} else {
		dst = append(dst, '"')
		dst = append(dst, c.args...)
		dst = append(dst, '"')
	}
	dst = append(dst, '}')
	for _, e := range c.more.Edits() {
		dst = append(dst, ',')
		dst = jscan.AppendString(dst, e.Name)
		dst = append(dst, ':')
		dst = append(dst, e.Value...)
	}
	return append(dst, '}')
}

// detail is one of OpenRouter's reasoning details.
type detail struct {
	typ, index string
	members    jscan.Merged
	first      []byte // as it came
	grown      bool
}

// addDetails adds reasoning details. Fragments of one detail are adjacent and have the same type
// and index; their texts are concatenated, and other members are set once.
func (d *Decoder) addDetails(list []byte, out []llm.Event) ([]llm.Event, error) {
	if jscan.KindOf(list) != jscan.Array {
		return out, nil
	}
	r := jscan.NewReader(list)
	r.Array()
	for r.Elem() {
		item := r.Skip()
		if jscan.KindOf(item) != jscan.Object {
			continue
		}
		typ, index := jscan.MemberString(item, "type"), string(jscan.Member(item, "index"))
		var last *detail
		if n := len(d.details); n > 0 {
			last = d.details[n-1]
		}
		if last == nil || last.typ != typ || last.index != index || typ == "reasoning.encrypted" {
			if len(d.details) >= d.limits.Blocks {
				return out, llm.OverLimit("it has more than %d reasoning details", d.limits.Blocks)
			}
			last = &detail{typ: typ, index: index, first: append([]byte(nil), item...)}
			d.details = append(d.details, last)
		} else {
			last.grow(item)
		}
		out = d.detailText(item, out)
	}
	return out, nil
}

func (t *detail) grow(item []byte) {
	if !t.grown {
		t.grown = true
		t.add(t.first)
	}
	t.add(item)
}

func (t *detail) add(item []byte) {
	r := jscan.NewReader(item)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name, value := string(key), r.Skip()
		grows := name == "text" || name == "summary" || name == "data"
		if grows || !t.members.Has(name) {
			t.members.Add(name, value)
		}
	}
}

func (t *detail) appendRaw(dst []byte) []byte {
	if !t.grown {
		return append(dst, t.first...)
	}
	return jscan.AppendSpliced(dst, []byte("{}"), t.members.Edits()...)
}

// detailText emits the text of details unless reasoning also comes as a plain string.
func (d *Decoder) detailText(item []byte, out []llm.Event) []llm.Event {
	if d.thinksIn != nil && d.thinksIn != &d.detailsSaid {
		return out
	}
	for _, name := range []string{"text", "summary"} {
		if v := jscan.Member(item, name); jscan.KindOf(v) == jscan.String {
			t := jscan.NewReader(v)
			out = d.think(&d.detailsSaid, &t, out)
		}
	}
	return out
}
