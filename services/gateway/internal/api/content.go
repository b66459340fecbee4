package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Content is a user message: a string, or text and file parts.
type Content struct{ json.RawMessage }

// maxParts bounds the parts of one message.
const maxParts = 100

// Schema implements huma.SchemaProvider.
func (Content) Schema(huma.Registry) *huma.Schema {
	text := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} }
	kind := func(name string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Enum: []any{name}} }
	return &huma.Schema{
		Description: "A string, or an array of text and file parts. Images are file parts.",
		Examples:    []any{"What's on my calendar?"},
		OneOf: []*huma.Schema{
			text(""),
			{Type: huma.TypeArray, Items: &huma.Schema{OneOf: []*huma.Schema{
				{
					Type: huma.TypeObject, Required: []string{"type", "text"},
					Properties: map[string]*huma.Schema{"type": kind("text"), "text": text("")},
				},
				{
					Type: huma.TypeObject, Required: []string{"type", "mediaType", "data"},
					Properties: map[string]*huma.Schema{
						"type": kind("file"), "mediaType": text("Such as image/png or application/pdf."),
						"data": text("An https URL, a data: URL, or base64."), "filename": text(""),
					},
				},
			}}},
		},
	}
}

// check validates the content. Its error names the part.
func (c Content) check() error {
	raw := c.RawMessage
	if len(raw) == 0 || string(raw) == "null" {
		return invalid("content is required: a string, or an array of parts")
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return checkNotBlank("content", text)
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return invalid("content: want a string or an array of parts")
	}
	if len(parts) == 0 {
		return invalid("content: the array is empty")
	}
	if len(parts) > maxParts {
		return invalid("content: more than %d parts", maxParts)
	}
	blank := true
	for i, p := range parts {
		hasContent, err := checkPart(fmt.Sprintf("content[%d]", i), p)
		if err != nil {
			return err
		}
		blank = blank && !hasContent
	}
	if blank {
		return invalid("content: the text is empty: write something, or attach a file")
	}
	return nil
}

func checkNotBlank(where, text string) error {
	if strings.TrimSpace(text) == "" {
		return invalid("%s: the text is empty", where)
	}
	return checkText(where, text, limitMessage)
}

// partFields are the known fields of parts. Others are ignored.
var partFields = []string{"type", "text", "mediaType", "data", "filename"}

// checkPart validates a part and reports whether it is more than white space. A blank text is
// possible beside other parts: clients send one with a picture alone.
func checkPart(where string, raw json.RawMessage) (hasContent bool, err error) {
	var p map[string]json.RawMessage
	if json.Unmarshal(raw, &p) != nil || p == nil {
		return false, invalid("%s: want an object", where)
	}
	for name := range p {
		if meant := nearest(name, partFields); meant != "" && !slices.Contains(partFields, name) {
			return false, invalid("%s.%s: no such field; did you mean %s?", where, clip(name), meant)
		}
	}
	kind, _, err := partField(where, p, "type")
	if err != nil {
		return false, err
	}
	switch kind {
	case "text":
		text, ok, err := partField(where, p, "text")
		if err == nil && !ok {
			err = invalid("%s.text is required", where)
		}
		if err != nil {
			return false, err
		}
		return strings.TrimSpace(text) != "", checkText(where+".text", text, limitMessage)
	case "file":
		return true, checkFile(where, p)
	case "image":
		return false, invalid("%s: send images as file parts: {\"type\":\"file\",\"mediaType\":\"image/png\",\"data\":…}", where)
	case "":
		return false, invalid("%s.type is required: text or file", where)
	}
	return false, invalid("%s.type: %q is not supported: use text or file", where, clip(kind))
}

func checkFile(where string, p map[string]json.RawMessage) error {
	media, _, err := partField(where, p, "mediaType")
	if err != nil {
		return err
	}
	if major, minor, ok := strings.Cut(media, "/"); !ok || major == "" || minor == "" || len(media) > 200 {
		return invalid("%s.mediaType: want a type such as image/png", where)
	}
	data, ok, err := partField(where, p, "data")
	if err != nil {
		return err
	}
	if !ok || data == "" {
		return invalid("%s.data is required: an https URL, a data: URL, or base64", where)
	}
	name, _, err := partField(where, p, "filename")
	if err != nil {
		return err
	}
	return checkText(where+".filename", name, 255)
}

// partField returns a part's string field. null is the same as absent.
func partField(where string, p map[string]json.RawMessage, name string) (value string, ok bool, err error) {
	raw, ok := p[name]
	if !ok || string(raw) == "null" {
		return "", false, nil
	}
	if json.Unmarshal(raw, &value) != nil {
		return "", false, invalid("%s.%s: want a string", where, name)
	}
	return value, true, nil
}
