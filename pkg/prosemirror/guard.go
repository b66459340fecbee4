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

// goldmark reads foreign text here, and some of what it does takes time that
// grows with the square of the input: nested lists with blank lines, delimiters
// without a partner, tables with many columns. The parsers are wrapped so that
// each of these is text from a certain size on, far above what people write.
const (
	maxMarkdownDepth = 32  // lists and quotes within each other
	maxColumns       = 200 // of a table
	maxTableCells    = 100_000
	maxDefinitions   = 2000 // lines of a paragraph that begins with link definitions
	// maxInlineCost bounds all inline markup: each attempt costs as much as there
	// were attempts before it in its block, and a quarter of what is left of its
	// line. A line of 10 KB can have 8,000 of them, and documents of MaxMarkdown in
	// lines of 5 KB one for each 20 bytes.
	maxInlineCost = 50_000_000
)

// markdown returns the parser: CommonMark with tables, strikethrough, task
// lists and bare links.
var markdown = sync.OnceValue(func() parser.Parser {
	blocks := []util.PrioritizedValue{}
	for _, b := range parser.DefaultBlockParsers() {
		switch b.Priority {
		case 300, 800: // lists and quotes
			b.Value = shallow{b.Value.(parser.BlockParser)}
		}
		blocks = append(blocks, b)
	}
	inlines := []util.PrioritizedValue{
		util.Prioritized(taskBox{extension.NewTaskCheckBoxParser()}, 0),
		util.Prioritized(guarded{parser.NewCodeSpanParser()}, 100),
		util.Prioritized(guardedLink{guarded{parser.NewLinkParser()}}, 200),
		util.Prioritized(parser.NewAutoLinkParser(), 300),
		util.Prioritized(parser.NewRawHTMLParser(), 400),
		util.Prioritized(guarded{parser.NewEmphasisParser()}, 500),
		util.Prioritized(guarded{extension.NewStrikethroughParser()}, 500),
		util.Prioritized(bareLink{extension.NewLinkifyParser()}, 999),
	}
	return parser.NewParser(
		parser.WithBlockParsers(blocks...),
		parser.WithInlineParsers(inlines...),
		parser.WithParagraphTransformers(
			util.Prioritized(fewLines{parser.LinkReferenceParagraphTransformer}, 100),
			util.Prioritized(narrow{extension.NewTableParagraphTransformer()}, 200),
		),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
})

// shallow refuses blocks that would nest too deep.
type shallow struct{ parser.BlockParser }

func (s shallow) Open(parent ast.Node, reader text.Reader, pc parser.Context) (ast.Node, parser.State) {
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

// guarded counts the attempts within blocks and stops at maxInlineCost.
type guarded struct{ parser.InlineParser }

var attemptsKey = parser.NewContextKey()

type attempts struct {
	block   ast.Node
	n, cost int
}

func (g guarded) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
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

// guardedLink keeps the link parser's end of a block, where it cleans up.
type guardedLink struct{ guarded }

func (g guardedLink) CloseBlock(parent ast.Node, block text.Reader, pc parser.Context) {
	if c, ok := g.InlineParser.(parser.CloseBlocker); ok {
		c.CloseBlock(parent, block, pc)
	}
}

// taskBox wants a paragraph, and a blank behind the box, as GitHub does: [x](url)
// is a link.
type taskBox struct{ parser.InlineParser }

func (t taskBox) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	line, _ := block.PeekLine()
	if parent.Kind() == ast.KindHeading || len(line) > 3 && !util.IsSpace(line[3]) {
		return nil
	}
	return t.InlineParser.Parse(parent, block, pc)
}

// bareLink wants no backtick in an address: goldmark looks for one before it looks
// for code, and a word`me@example.com` has both.
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

// fewLines leaves long paragraphs alone that may begin with many link definitions.
type fewLines struct{ parser.ParagraphTransformer }

func (t fewLines) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	if node.Lines().Len() <= maxDefinitions {
		t.ParagraphTransformer.Transform(node, reader, pc)
	}
}

// narrow leaves paragraphs alone that would be tables of too many cells.
type narrow struct{ parser.ParagraphTransformer }

func (t narrow) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
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
