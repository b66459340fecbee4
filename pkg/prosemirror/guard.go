package prosemirror

import (
	"bytes"
	"sync"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Markdown is untrusted, and goldmark needs quadratic time for nested lists with blank lines,
// unmatched delimiters and very wide tables. These wrappers around its parsers leave such
// markup as text beyond limits far above what people write.
const (
	maxMarkdownDepth = 32  // nested lists and quotes
	maxColumns       = 200 // per table
	maxTableCells    = 100_000
	maxDefinitions   = 2000 // lines in a paragraph that begins with link definitions
	// maxInlineCost bounds the inline markup of a document: each attempt costs the number
	// of earlier attempts in its block plus a quarter of the rest of its line. That allows
	// 8,000 attempts on a line of 10 KB, or one per 20 bytes in a document of MaxMarkdown
	// with lines of 5 KB.
	maxInlineCost = 50_000_000
)

// markdown returns the parser: CommonMark with tables, strikethrough, task
// lists and bare links.
var markdown = sync.OnceValue(func() parser.Parser {
	blocks := []util.PrioritizedValue{}
	for _, b := range parser.DefaultBlockParsers() {
		switch b.Priority {
		case 300, 800: // lists and quotes
			b.Value = depthLimited{b.Value.(parser.BlockParser)}
		}
		blocks = append(blocks, b)
	}
	inlines := []util.PrioritizedValue{
		util.Prioritized(taskBox{extension.NewTaskCheckBoxParser()}, 0),
		util.Prioritized(costLimited{parser.NewCodeSpanParser()}, 100),
		util.Prioritized(costLimitedLink{costLimited{parser.NewLinkParser()}}, 200),
		util.Prioritized(parser.NewAutoLinkParser(), 300),
		util.Prioritized(parser.NewRawHTMLParser(), 400),
		util.Prioritized(costLimited{parser.NewEmphasisParser()}, 500),
		util.Prioritized(costLimited{extension.NewStrikethroughParser()}, 500),
		util.Prioritized(bareLink{extension.NewLinkifyParser()}, 999),
	}
	return parser.NewParser(
		parser.WithBlockParsers(blocks...),
		parser.WithInlineParsers(inlines...),
		parser.WithParagraphTransformers(
			util.Prioritized(definitionLimited{parser.LinkReferenceParagraphTransformer}, 100),
			util.Prioritized(tableLimited{extension.NewTableParagraphTransformer()}, 200),
		),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
})

// depthLimited refuses blocks that would nest too deeply.
type depthLimited struct{ parser.BlockParser }

func (s depthLimited) Open(parent ast.Node, reader text.Reader, pc parser.Context) (ast.Node, parser.State) {
	depth := 0
	for n := parent; n != nil; n = n.Parent() {
		if k := n.Kind(); k == ast.KindList || k == ast.KindBlockquote {
			depth++
		}
	}
	if depth >= maxMarkdownDepth {
		return nil, parser.NoChildren
	}
	return s.BlockParser.Open(parent, reader, pc)
}

// costLimited counts the attempts per block and stops at maxInlineCost.
type costLimited struct{ parser.InlineParser }

var attemptsKey = parser.NewContextKey()

type attempts struct {
	block   ast.Node
	n, cost int
}

func (g costLimited) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	a := pc.ComputeIfAbsent(attemptsKey, func() any { return &attempts{} }).(*attempts)
	if a.block != parent {
		a.block, a.n = parent, 0
	}
	a.n++
	line, _ := block.PeekLine()
	if a.cost += a.n + len(line)/4; a.cost > maxInlineCost {
		return nil
	}
	return g.InlineParser.Parse(parent, block, pc)
}

// costLimitedLink forwards CloseBlock, in which the link parser cleans up.
type costLimitedLink struct{ costLimited }

func (g costLimitedLink) CloseBlock(parent ast.Node, block text.Reader, pc parser.Context) {
	if c, ok := g.InlineParser.(parser.CloseBlocker); ok {
		c.CloseBlock(parent, block, pc)
	}
}

// taskBox requires a paragraph, and whitespace after the box, as GitHub does: [x](url) is a
// link.
type taskBox struct{ parser.InlineParser }

func (t taskBox) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	line, _ := block.PeekLine()
	if parent.Kind() == ast.KindHeading || len(line) > 3 && !util.IsSpace(line[3]) {
		return nil
	}
	return t.InlineParser.Parse(parent, block, pc)
}

// bareLink rejects addresses with a backtick: goldmark looks for addresses before code, and
// word`me@example.com` contains both.
type bareLink struct{ parser.InlineParser }

func (b bareLink) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	line, _ := block.PeekLine()
	word := line
	if len(line) > 0 && bytes.IndexByte([]byte(" *_~("), line[0]) >= 0 {
		word = line[1:]
	}
	if n := util.FindEmailIndex(word); n > 0 && bytes.IndexByte(word[:n], '`') >= 0 {
		return nil
	}
	return b.InlineParser.Parse(parent, block, pc)
}

// definitionLimited skips long paragraphs, which may begin with many link definitions.
type definitionLimited struct{ parser.ParagraphTransformer }

func (t definitionLimited) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	if node.Lines().Len() <= maxDefinitions {
		t.ParagraphTransformer.Transform(node, reader, pc)
	}
}

// tableLimited skips paragraphs that would become tables with too many cells.
type tableLimited struct{ parser.ParagraphTransformer }

func (t tableLimited) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	lines, columns := node.Lines(), 0
	for i := range lines.Len() {
		l := lines.At(i)
		line := l.Value(reader.Source())
		if bytes.IndexByte(line, '-') < 0 || len(bytes.Trim(line, "|-: \t\r\n")) > 0 {
			continue
		}
		columns = max(columns, bytes.Count(line, []byte{'|'})+1)
	}
	if columns == 0 || columns > maxColumns || columns*lines.Len() > maxTableCells {
		return
	}
	t.ParagraphTransformer.Transform(node, reader, pc)
}
