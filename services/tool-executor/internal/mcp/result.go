package mcp

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/tool-executor/internal/tool"
)

// resultOf turns a server's answer into an envelope: its structured content, or else its texts.
// Pictures and sounds are only mentioned.
func resultOf(s Server, res *mcp.CallToolResult) tool.Result {
	if res.NeedsInput() {
		return tool.Errorf("mcp_input", "the MCP server %s asks for more input from a person, which is not supported; do without it", s.Name)
	}
	text := textOf(res.Content)
	if res.IsError {
		if text == "" {
			text = "the tool failed without saying why"
		}
		return tool.Errorf("tool_error", "%s", clip(text, maxErrorText))
	}
	if res.StructuredContent != nil {
		if raw, err := json.Marshal(res.StructuredContent); err == nil && string(raw) != "null" {
			return tool.Object(json.RawMessage(raw))
		}
	}
	return tool.Object(map[string]string{"result": text})
}

const maxErrorText = 4000

func textOf(all []mcp.Content) string {
	var parts []string
	for _, c := range all {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.ImageContent:
			parts = append(parts, fmt.Sprintf("[a picture (%s, %d bytes), which cannot be shown]", clip(c.MIMEType, 100), len(c.Data)))
		case *mcp.AudioContent:
			parts = append(parts, fmt.Sprintf("[a sound (%s, %d bytes), which cannot be played]", clip(c.MIMEType, 100), len(c.Data)))
		case *mcp.ResourceLink:
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("[resource %s] %s %s", c.URI, c.Name, c.Description)))
		case *mcp.EmbeddedResource:
			switch r := c.Resource; {
			case r == nil:
			case r.Text != "":
				parts = append(parts, r.Text)
			default:
				parts = append(parts, fmt.Sprintf("[resource %s (%s, %d bytes)]", r.URI, clip(r.MIMEType, 100), len(r.Blob)))
			}
		}
	}
	return strings.Join(parts, "\n")
}
