package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	notion        = "notion"
	notionVersion = "2022-06-28"
)

// notionReady says whether the workspace has connected Notion.
func (d Deps) notionReady(ctx context.Context) tool.Availability {
	return d.Egress.Available(ctx, notion)
}

func (d Deps) notionCall(ctx context.Context, r egress.Request, out any) (egress.Reply, error) {
	r.Provider, r.Header = notion, map[string]string{"Notion-Version": notionVersion}
	return d.Egress.Do(ctx, r, out)
}

// notionList is a page of a list.
type notionList[T any] struct {
	Results    []T    `json:"results"`
	NextCursor string `json:"next_cursor"`
}

// notionPage is a page without its content.
type notionPage struct {
	ID         string `json:"id"`
	URL        string `json:"url"`
	LastEdited string `json:"last_edited_time"`
	Properties map[string]struct {
		Type  string       `json:"type"`
		Title []notionText `json:"title"`
	} `json:"properties"`
}

// title is the page's property of that type, whatever its name.
func (p *notionPage) title() string {
	for _, v := range p.Properties {
		if v.Type == "title" {
			return shorten(plainText(v.Title), maxTitle)
		}
	}
	return ""
}

// notionText is a part of rich text. Text is set in what is sent, the others in what is read.
type notionText struct {
	Type        string         `json:"type,omitempty"`
	Text        *notionContent `json:"text,omitempty"`
	Plain       string         `json:"plain_text,omitempty"`
	Href        string         `json:"href,omitempty"`
	Annotations *notionStyle   `json:"annotations,omitempty"`
}

type notionContent struct {
	Content string      `json:"content"`
	Link    *notionLink `json:"link,omitempty"`
}

type notionLink struct {
	URL string `json:"url"`
}

type notionStyle struct {
	Bold   bool   `json:"bold,omitempty"`
	Italic bool   `json:"italic,omitempty"`
	Strike bool   `json:"strikethrough,omitempty"`
	Code   bool   `json:"code,omitempty"`
	Color  string `json:"color,omitempty"`
}

func plainText(parts []notionText) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Plain)
	}
	return b.String()
}

// markdown writes rich text as Markdown.
func markdown(parts []notionText) string {
	var b strings.Builder
	for _, p := range parts {
		s := p.Plain
		if a := p.Annotations; a != nil && strings.TrimSpace(s) != "" {
			for _, v := range []struct {
				on   bool
				mark string
			}{{a.Code, "`"}, {a.Bold, "**"}, {a.Italic, "*"}, {a.Strike, "~~"}} {
				if v.on {
					s = v.mark + s + v.mark
				}
			}
		}
		if strings.HasPrefix(p.Href, "http") {
			s = "[" + s + "](" + p.Href + ")"
		}
		b.WriteString(s)
	}
	return withoutMarker(b.String())
}

// notionBlock is a block as it is read: its content is a member that is called as its type.
type notionBlock struct {
	ID          string
	Type        string
	HasChildren bool
	Content     notionContentOf
}

// notionContentOf has the members of all types of content that are shown.
type notionContentOf struct {
	RichText []notionText   `json:"rich_text"`
	Checked  bool           `json:"checked"`
	Language string         `json:"language"`
	Title    string         `json:"title"`
	URL      string         `json:"url"`
	Cells    [][]notionText `json:"cells"`
	Caption  []notionText   `json:"caption"`
	File     notionLink     `json:"file"`
	External notionLink     `json:"external"`
	Formula  string         `json:"expression"`
}

// UnmarshalJSON finds the content by the type.
func (b *notionBlock) UnmarshalJSON(raw []byte) error {
	var head struct {
		ID          string `json:"id"`
		Type        string `json:"type"`
		HasChildren bool   `json:"has_children"`
	}
	var members map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(raw, &head), json.Unmarshal(raw, &members)); err != nil {
		return err
	}
	*b = notionBlock{ID: head.ID, Type: head.Type, HasChildren: head.HasChildren}
	if content, ok := members[head.Type]; ok {
		return json.Unmarshal(content, &b.Content)
	}
	return nil
}

// prefixes are what the lines of a block begin with.
var prefixes = map[string]string{
	"heading_1": "# ", "heading_2": "## ", "heading_3": "### ", "bulleted_list_item": "- ", "toggle": "- ", "numbered_list_item": "1. ", "quote": "> ", "callout": "> ",
}

// markdown writes a block without its children.
func (b *notionBlock) markdown() string {
	c := &b.Content
	said := markdown(c.RichText)
	switch b.Type {
	case "to_do":
		if c.Checked {
			return "- [x] " + said
		}
		return "- [ ] " + said
	case "code":
		return "```" + strings.ReplaceAll(c.Language, "plain text", "") + "\n" + plainText(c.RichText) + "\n```"
	case "divider":
		return "---"
	case "equation":
		return "$$" + c.Formula + "$$"
	case "child_page", "child_database":
		return fmt.Sprintf("[%s](%s)", c.Title, b.ID)
	case "table_row":
		cells := make([]string, len(c.Cells))
		for i, cell := range c.Cells {
			cells[i] = strings.ReplaceAll(markdown(cell), "|", `\|`)
		}
		return "| " + strings.Join(cells, " | ") + " |"
	case "image", "file", "pdf", "video", "bookmark", "embed", "link_preview":
		url := c.URL + c.File.URL + c.External.URL // one of them is there
		return fmt.Sprintf("[%s](%s)", strings.TrimSpace(b.Type+" "+markdown(c.Caption)), url)
	}
	return prefixes[b.Type] + strings.ReplaceAll(said, "\n", "\n"+strings.Repeat(" ", len(prefixes[b.Type])))
}

var notionIDForm = regexp.MustCompile(`([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})$`)

// notionID returns the id in a text: an id, or the address of a page that ends with one.
func notionID(text string) (string, error) {
	path, _, _ := strings.Cut(text, "?")
	m := notionIDForm.FindStringSubmatch(strings.ToLower(path))
	if m == nil {
		return "", fault.New(fault.Invalid, "arguments.id: is not the id of a page; notion_search shows them")
	}
	return strings.Join(m[1:], "-"), nil
}
