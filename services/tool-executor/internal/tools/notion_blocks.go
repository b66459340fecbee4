package tools

import (
	"maps"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"

	"signalbox.dev/pkg/fault"
)

// Notion's limits of a request.
const (
	maxNotionBlocks = 100
	maxNotionParts  = 100  // of a block's rich text
	maxNotionText   = 1000 // runes of a part; Notion counts 2,000 units of UTF-16
	maxNotionNested = 2    // levels below the first
)

// block is a block as it is sent.
type block = map[string]any

// notionParser reads the Markdown that models write. It knows no HTML.
var notionParser = goldmark.New(goldmark.WithExtensions(extension.TaskList, extension.Strikethrough)).Parser()

// notionBlocks turns Markdown into blocks, with a marker behind the last. What Notion has no
// block for becomes a paragraph with the Markdown.
func notionBlocks(content, mark string) ([]block, error) {
	if strings.TrimSpace(content) == "" {
		return nil, fault.New(fault.Invalid, "arguments.content: is empty")
	}
	w := &blockWriter{source: []byte(content)}
	blocks := w.below(notionParser.Parse(text.NewReader(w.source)), 0)
	grey := notionText{Type: "text", Text: &notionContent{Content: " " + mark}, Annotations: &notionStyle{Color: "gray"}}
	last, kind := block(nil), ""
	if len(blocks) > 0 {
		last = blocks[len(blocks)-1]
		kind, _ = last["type"].(string)
	}
	if inner, ok := last[kind].(block); ok && kind != "code" && inner["rich_text"] != nil {
		parts, _ := inner["rich_text"].([]notionText)
		inner["rich_text"] = append(parts, grey)
	} else {
		blocks = append(blocks, w.block("paragraph", []notionText{grey}, nil))
	}
	if w.count > maxNotionBlocks || w.parts >= maxNotionParts {
		return nil, fault.New(fault.TooLarge, "arguments.content: makes more than %d blocks, or a block of more than %d pieces: append it in several calls", maxNotionBlocks, maxNotionParts)
	}
	return blocks, nil
}

type blockWriter struct {
	source []byte
	count  int // of blocks
	parts  int // of the block with the most
}

func (w *blockWriter) block(kind string, parts []notionText, more block) block {
	w.count++
	w.parts = max(w.parts, len(parts))
	content := block{}
	if kind != "divider" {
		if parts == nil {
			parts = []notionText{}
		}
		content["rich_text"] = parts
	}
	maps.Copy(content, more)
	return block{"object": "block", "type": kind, kind: content}
}

// below returns the blocks below a node.
func (w *blockWriter) below(parent ast.Node, depth int) (all []block) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			all = append(all, w.block("heading_"+string(rune('0'+min(n.Level, 3))), w.inline(n), nil))
		case *ast.List:
			kind := "bulleted_list_item"
			if n.IsOrdered() {
				kind = "numbered_list_item"
			}
			for item := n.FirstChild(); item != nil; item = item.NextSibling() {
				all = append(all, w.item(kind, item, depth)...)
			}
		case *ast.Blockquote:
			var parts []notionText
			for p := n.FirstChild(); p != nil; p = p.NextSibling() {
				if len(parts) > 0 {
					parts = append(parts, plain("\n")...)
				}
				parts = append(parts, w.inline(p)...)
			}
			all = append(all, w.block("quote", parts, nil))
		case *ast.FencedCodeBlock:
			all = append(all, w.block("code", plain(w.lines(n)), block{"language": language(string(n.Language(w.source)))}))
		case *ast.CodeBlock:
			all = append(all, w.block("code", plain(w.lines(n)), block{"language": "plain text"}))
		case *ast.ThematicBreak:
			all = append(all, w.block("divider", nil, nil))
		case *ast.Paragraph, *ast.TextBlock:
			all = append(all, w.block("paragraph", w.inline(n), nil))
		default:
			all = append(all, w.block("paragraph", plain(w.lines(n)), nil))
		}
	}
	return all
}

// item returns a list's item. What is nested too deep follows it.
func (w *blockWriter) item(kind string, n ast.Node, depth int) []block {
	first, more := n.FirstChild(), block{}
	var parts []notionText
	if first != nil {
		if box, ok := first.FirstChild().(*extast.TaskCheckBox); ok {
			kind, more["checked"] = "to_do", box.IsChecked
		}
		if first.Kind() == ast.KindParagraph || first.Kind() == ast.KindTextBlock {
			parts = w.inline(first)
			n.RemoveChild(n, first)
		}
	}
	below := w.below(n, depth+1)
	if len(below) > 0 && depth < maxNotionNested {
		more["children"] = below
		below = nil
	}
	return append([]block{w.block(kind, parts, more)}, below...)
}

// lines is the source of a block.
func (w *blockWriter) lines(n ast.Node) string {
	var b strings.Builder
	if n.Type() == ast.TypeBlock {
		for i := range n.Lines().Len() {
			line := n.Lines().At(i)
			b.Write(line.Value(w.source))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// inline returns the text below a node.
func (w *blockWriter) inline(n ast.Node) []notionText {
	var parts []notionText
	w.spans(n, notionStyle{}, "", &parts)
	return parts
}

func (w *blockWriter) spans(parent ast.Node, style notionStyle, link string, parts *[]notionText) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		style, link := style, link
		switch n := n.(type) {
		case *ast.Text:
			s := string(n.Value(w.source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				s += "\n"
			}
			*parts = append(*parts, styled(s, style, link)...)
			continue
		case *ast.String:
			*parts = append(*parts, styled(string(n.Value), style, link)...)
			continue
		case *ast.AutoLink:
			*parts = append(*parts, styled(string(n.Label(w.source)), style, string(n.URL(w.source)))...)
			continue
		case *ast.RawHTML:
			*parts = append(*parts, styled(string(n.Segments.Value(w.source)), style, link)...)
			continue
		case *ast.Link:
			link = string(n.Destination)
		case *ast.Image:
			link = string(n.Destination)
		case *ast.CodeSpan:
			style.Code = true
		case *ast.Emphasis:
			style.Bold, style.Italic = style.Bold || n.Level == 2, style.Italic || n.Level == 1
		case *extast.Strikethrough:
			style.Strike = true
		}
		w.spans(n, style, link, parts)
	}
}

func plain(s string) []notionText { return styled(s, notionStyle{}, "") }

// styled returns a text in pieces that Notion takes. Only links to the web are links.
func styled(s string, style notionStyle, link string) (parts []notionText) {
	for all := []rune(s); len(all) > 0; {
		n := min(len(all), maxNotionText)
		part := notionText{Type: "text", Text: &notionContent{Content: string(all[:n])}}
		if strings.HasPrefix(link, "https://") || strings.HasPrefix(link, "http://") {
			part.Text.Link = &notionLink{URL: link}
		}
		if style != (notionStyle{}) {
			part.Annotations = &style
		}
		parts, all = append(parts, part), all[n:]
	}
	return parts
}

// language is Notion's name of a language; it refuses others.
func language(name string) string {
	switch name {
	case "bash", "c", "css", "go", "html", "java", "javascript", "json", "markdown", "python", "ruby", "rust", "shell", "sql", "typescript", "xml", "yaml":
		return name
	case "sh":
		return "shell"
	case "js":
		return "javascript"
	case "ts":
		return "typescript"
	case "py":
		return "python"
	}
	return "plain text"
}
