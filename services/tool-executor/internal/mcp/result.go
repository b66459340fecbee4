package mcp

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/tool-executor/internal/tool"
)

// resultOf turns a server's answer into an envelope: its structured content, or else its texts,
// and its first picture. Sounds and further pictures are only mentioned.
func (c *client) resultOf(s Server, res *mcp.CallToolResult) tool.Result {
	if res.NeedsInput() {
		return tool.Errorf("mcp_input", "the MCP server %s asks for more input from a person, which is not supported; do without it", s.Name)
	}
	r := reader{client: c}
	text := r.text(res.Content)
	if res.IsError {
		if text == "" {
			text = "the tool failed without saying why"
		}
		return tool.Errorf("tool_error", "%s", clip(text, maxErrorText))
	}
	return r.result(structured(res, text))
}

// structured returns the value of an answer.
func structured(res *mcp.CallToolResult, text string) any {
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil || string(raw) == "null" {
		return map[string]string{"result": text}
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) == nil && members["image"] != nil {
		return map[string]json.RawMessage{"result": raw} // it would pass for a picture
	}
	return json.RawMessage(raw)
}

const maxErrorText = 4000

// reader reads content as text. It keeps the first picture that can be shown.
type reader struct {
	client  *client
	picture *tool.File
}

// result returns an envelope with the picture.
func (r *reader) result(v any) tool.Result {
	out := tool.Object(v)
	if r.picture != nil {
		out = out.WithImage(*r.picture)
	}
	return out
}

func (r *reader) text(all []mcp.Content) string {
	var parts []string
	for _, c := range all {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.ImageContent:
			parts = append(parts, r.show(c.MIMEType, c.Data))
		case *mcp.AudioContent:
			parts = append(parts, fmt.Sprintf("[a sound (%s, %d bytes), which cannot be played]", clip(c.MIMEType, 100), len(c.Data)))
		case *mcp.ResourceLink:
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("[resource %s] %s %s", c.URI, c.Name, c.Description)))
		case *mcp.EmbeddedResource:
			switch e := c.Resource; {
			case e == nil:
			case e.Text != "":
				parts = append(parts, e.Text)
			case strings.HasPrefix(e.MIMEType, "image/"):
				parts = append(parts, fmt.Sprintf("[resource %s] %s", e.URI, r.show(e.MIMEType, e.Blob)))
			default:
				parts = append(parts, fmt.Sprintf("[resource %s (%s, %d bytes)]", e.URI, clip(e.MIMEType, 100), len(e.Blob)))
			}
		}
	}
	return strings.Join(parts, "\n")
}

// show keeps a picture, if it is the first that can be shown, and returns the text in its place.
func (r *reader) show(label string, data []byte) string {
	what := fmt.Sprintf("%s, %d bytes", clip(label, 100), len(data))
	if r.picture != nil {
		return "[another picture (" + what + "), which is not shown: one for each result is]"
	}
	f, err := r.client.pictureOf(data)
	if err != nil {
		return "[a picture (" + what + "), which cannot be shown: " + err.Error() + "]"
	}
	r.picture = &f
	return "[the picture (" + what + ")]"
}
