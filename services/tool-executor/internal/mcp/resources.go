package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/tool-executor/internal/tool"
)

// Kinds of tools that we add to a server's own.
const (
	kindResource = "resource"
	kindPrompt   = "prompt"
)

// added returns the tools for what a server offers beside tools. Their definitions are ours and
// need no approval: what the server offers is only in their results.
func added(has *mcp.ServerCapabilities) (all []Definition) {
	if has == nil {
		return nil
	}
	if has.Resources != nil {
		all = append(all, Definition{
			Name: "read_resource", Kind: kindResource, ReadOnly: true,
			Description: "Reads a resource (a file, a record or the like) of this MCP server. Without a URI it lists the resources, and templates of URIs.",
			InputSchema: json.RawMessage(`{"type":"object","properties":{"uri":{"type":"string","description":"the resource to read; leave it out for a list"},"cursor":{"type":"string","description":"next_cursor of the previous part of the list"}},"additionalProperties":false}`),
		})
	}
	if has.Prompts != nil {
		all = append(all, Definition{
			Name: "get_prompt", Kind: kindPrompt, ReadOnly: true,
			Description: "Gets a prompt that this MCP server has prepared for a task. Without a name it lists the prompts and their arguments.",
			InputSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","description":"the prompt to get; leave it out for a list"},"arguments":{"type":"object","additionalProperties":{"type":"string"}},"cursor":{"type":"string","description":"next_cursor of the previous part of the list"}},"additionalProperties":false}`),
		})
	}
	return all
}

type listedResource struct {
	URI         string `json:"uri"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	MIMEType    string `json:"mime_type,omitempty"`
}

// resource reads a resource, or lists them.
func resource(ctx context.Context, session *mcp.ClientSession, args json.RawMessage, read *reader) (any, error) {
	var in struct{ URI, Cursor string }
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, fmt.Errorf("decode arguments that satisfy the schema: %w", err)
	}
	if in.URI != "" {
		res, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: in.URI})
		if err != nil {
			return nil, err
		}
		type content struct {
			URI      string `json:"uri"`
			MIMEType string `json:"mime_type,omitempty"`
			Text     string `json:"text"`
		}
		all := []content{}
		for _, r := range res.Contents {
			if r != nil {
				all = append(all, content{r.URI, r.MIMEType, read.text([]mcp.Content{&mcp.EmbeddedResource{Resource: r}})})
			}
		}
		return map[string]any{"contents": all}, nil
	}
	res, err := session.ListResources(ctx, &mcp.ListResourcesParams{Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	out := struct {
		Resources  []listedResource `json:"resources"`
		Templates  []listedResource `json:"templates,omitempty"`
		NextCursor string           `json:"next_cursor,omitempty"`
	}{Resources: []listedResource{}, NextCursor: res.NextCursor}
	for _, r := range res.Resources {
		if r != nil {
			out.Resources = append(out.Resources, listedResource{r.URI, r.Name, r.Description, r.MIMEType})
		}
	}
	if in.Cursor == "" {
		templates, err := session.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{})
		if err != nil {
			return out, nil //nolint:nilerr // many servers have none
		}
		for _, r := range templates.ResourceTemplates {
			if r != nil {
				out.Templates = append(out.Templates, listedResource{r.URITemplate, r.Name, r.Description, r.MIMEType})
			}
		}
	}
	return out, nil
}

type promptArgument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

type listedPrompt struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Arguments   []promptArgument `json:"arguments,omitempty"`
}

// prompt gets a prompt, or lists them.
func prompt(ctx context.Context, session *mcp.ClientSession, args json.RawMessage, read *reader) (any, error) {
	var in struct {
		Name, Cursor string
		Arguments    map[string]string
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, fmt.Errorf("decode arguments that satisfy the schema: %w", err)
	}
	if in.Name != "" {
		res, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: in.Name, Arguments: in.Arguments})
		if err != nil {
			return nil, err
		}
		type message struct {
			Role string `json:"role"`
			Text string `json:"text"`
		}
		all := []message{}
		for _, m := range res.Messages {
			if m != nil {
				all = append(all, message{string(m.Role), read.text([]mcp.Content{m.Content})})
			}
		}
		return map[string]any{"description": res.Description, "messages": all}, nil
	}
	res, err := session.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	out := struct {
		Prompts    []listedPrompt `json:"prompts"`
		NextCursor string         `json:"next_cursor,omitempty"`
	}{Prompts: []listedPrompt{}, NextCursor: res.NextCursor}
	for _, p := range res.Prompts {
		if p == nil {
			continue
		}
		listed := listedPrompt{Name: p.Name, Description: p.Description}
		for _, a := range p.Arguments {
			if a != nil {
				listed.Arguments = append(listed.Arguments, promptArgument{a.Name, a.Description, a.Required})
			}
		}
		out.Prompts = append(out.Prompts, listed)
	}
	return out, nil
}

// use runs a tool of a kind that we have added.
func (c *client) use(ctx context.Context, s Server, kind string, args json.RawMessage) (tool.Result, error) {
	get := resource
	if kind == kindPrompt {
		get = prompt
	}
	return c.perform(ctx, s, func(ctx context.Context, session *mcp.ClientSession) (tool.Result, error) {
		read := reader{client: c}
		v, err := get(ctx, session, args, &read)
		return read.result(v), err
	})
}
