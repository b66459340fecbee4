package llm

import (
	"encoding/json"
	"fmt"
	"strings"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// ToolName returns name if providers accept it (letters, digits, _ and -, at most limit
// bytes), otherwise one derived from it. Names that a model invented stay in the history.
func ToolName(name string, limit int) string {
	ok := name != "" && len(name) <= limit
	b := []byte(name)
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			b[i] = '_'
			ok = false
		}
	}
	if ok {
		return name
	}
	if len(b) == 0 {
		return "unnamed"
	}
	if len(b) > limit {
		b = fmt.Appendf(b[:limit-17:limit-17], "_%016x", hash(name))
	}
	return string(b)
}

// IsText reports whether a media type is text that a model can read.
func IsText(media string) bool {
	if strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "+json") || strings.HasSuffix(media, "+xml") || strings.HasSuffix(media, "+yaml") {
		return true
	}
	switch media {
	case "application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml",
		"application/javascript", "application/typescript", "application/sql", "application/x-sh", "application/x-ndjson",
		"application/jsonl", "application/csv":
		return true
	}
	return false
}

// FileLabel returns a file's name for people.
func FileLabel(p *modelmsg.Part) string {
	if p.Filename != "" {
		return fmt.Sprintf("%q", p.Filename)
	}
	return "of type " + p.MediaType
}

// FileRemark returns the text that replaces a file which the model cannot read.
func FileRemark(p *modelmsg.Part) string {
	if p.Filename != "" {
		return fmt.Sprintf("[The file %q (%s) stood here; it cannot be shown to this model.]", p.Filename, p.MediaType)
	}
	return fmt.Sprintf("[A file (%s) stood here; it cannot be shown to this model.]", p.MediaType)
}

// RichFile returns one item of a tool output's content variant as a file part. It accepts all
// forms that the AI SDK has had.
func RichFile(item json.RawMessage) modelmsg.Part {
	p := modelmsg.Part{Type: modelmsg.File, MediaType: jscan.MemberString(item, "mediaType"), Filename: jscan.MemberString(item, "filename")}
	p.Data = jscan.MemberString(item, "data")
	if p.Data == "" {
		p.Data = jscan.MemberString(item, "url")
	}
	if inner := jscan.Member(item, "data"); p.Data == "" && jscan.KindOf(inner) == jscan.Object {
		if p.Data = jscan.MemberString(inner, "data"); p.Data == "" {
			p.Data = jscan.MemberString(inner, "url")
		}
	}
	if p.MediaType == "" {
		p.MediaType = "application/octet-stream"
		if strings.HasPrefix(jscan.MemberString(item, "type"), "image") {
			p.MediaType = "image/*"
		}
	}
	return p
}

// Options are provider options of a request, members of the body's top level.
type Options struct {
	members []jscan.Edit
}

// ReadOptions reads an object of options. It leaves out members that would break the request,
// and returns none if the value is not an object.
func ReadOptions(object json.RawMessage) Options {
	var o Options
	r := jscan.NewReader(object)
	if len(object) == 0 || !jscan.Valid(object) || !r.Object() {
		return o
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		value := r.Skip()
		switch name := string(key); name {
		case "model", "messages", "stream", "system", "tools":
		default:
			if o.Free(name) {
				o.members = append(o.members, jscan.Edit{Name: name, Value: value})
			}
		}
	}
	return o
}

// Free reports whether no option sets the member, so that the builder may set it.
func (o Options) Free(name string) bool {
	for _, m := range o.members {
		if m.Name == name {
			return false
		}
	}
	return true
}

// Append appends the members, each after a comma.
func (o Options) Append(dst []byte) []byte {
	for _, m := range o.members {
		dst = append(dst, ',')
		dst = jscan.AppendString(dst, m.Name)
		dst = append(dst, ':')
		dst = jscan.AppendCompact(dst, m.Value)
	}
	return dst
}
