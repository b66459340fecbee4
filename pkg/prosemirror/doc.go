// Package prosemirror parses, validates, compares and writes ProseMirror and TipTap
// documents without an editor.
//
// A document is a tree of immutable Node values, whose JSON is what TipTap's getJSON
// returns. A Schema, compiled from data, defines the valid trees; TipTap returns the schema
// of TipTap 3. Check reports the first violation. Fit returns the nearest valid tree: it
// creates required nodes, wraps misplaced ones, turns the rest into paragraphs and never
// drops text. Validity matters because an editor deletes from a shared document, for all
// users, whatever its schema rejects.
//
// # Markdown
//
// Parse reads CommonMark with GitHub's tables, strikethrough, task lists and bare links.
// For each valid tree, Parse(Render(tree)) equals the tree; for any Markdown,
// Render(Parse(md)) is stable after one pass. The rules:
//
//   - What Markdown cannot express is written as the HTML that TipTap writes: <u>, <mark>,
//     <sup>, <sub>, <a> with attributes, <span data-type="mention">, <img width>, and <table>
//     with Markdown in its cells. Only these tags are read back; other inline HTML is text
//     and an HTML block is source code.
//   - Emphasis uses delimiters where CommonMark reads them as intended, otherwise <strong>,
//     <em> and <s>.
//   - A paragraph is one line. A hard break is a backslash at the end of a line, a newline in
//     text is &#10;, and an empty paragraph is &nbsp;.
//   - Lists are tight, and adjacent lists alternate their markers. Fences are longer than any
//     run of backticks in their content.
//   - A link around an image becomes the image's href attribute. If the schema's code mark
//     excludes other marks, a link wins over code, and code over the rest.
//   - A node or mark outside the schema is rendered as its text.
//   - The empty paragraph that TipTap's trailingNode adds is not rendered; parsing adds it.
//
// Import also reports, by line, everything that was not stored as written. Four things do
// not survive a round trip: NUL, which becomes U+FFFD; an empty string where null is the
// default; null next to an empty string in a link's attributes; lists and quotes nested
// deeper than 32.
//
// Input size, nesting and inline markup are bounded. ParseLarge splits larger documents into
// sections. RenderMap maps the Markdown back to the tree. Edit, Append and Replace change a
// document through its Markdown and leave all other blocks untouched.
//
// # Shared documents
//
// TipTap stores a document in a Yjs fragment: an element per node, with its non-null
// attributes, and one text per run of adjacent text, with marks as formats
// {name: attributes}. Read returns what TipTap would show. Write compares the fragment with
// the wanted tree (see Diff) and changes only what differs, in one transaction, so that
// cursors and concurrent edits elsewhere survive. Seed creates a deterministic first update.
//
// A connected editor has nothing to correct after such an update. Nodes and marks outside
// the schema stay until the text around them is deleted; new ones are made to fit. Yjs can
// neither move a node nor change its type: Write replaces the node, and concurrent edits in
// the old one are lost.
//
// # Sources
//
// CommonMark 0.31.2, GitHub Flavored Markdown 0.29, the ProseMirror guide (content
// expressions), TipTap 3.31.3 (testdata/tiptap.json) and y-prosemirror; Myers 1986 for text
// comparison. The parser is goldmark.
//
// All functions except Write are pure, and a Schema is safe for concurrent use.
package prosemirror
