// Package prosemirror reads, checks, compares and writes documents as the editors
// ProseMirror and TipTap keep them, without an editor: trees of nodes, with marks on
// their texts, that obey a schema.
//
// # Trees
//
// A document is a tree of Node values that nobody changes; each operation returns
// another tree, which shares what is the same. Their JSON is what TipTap's getJSON
// gives and setContent takes.
//
// # Schemas
//
// A Schema is compiled from data: nodes with attributes and content expressions,
// which become small automata, and marks with what they exclude. TipTap is the
// schema of TipTap 3 as it comes; other types of documents change its Spec.
//
// Check finds what is wrong with a tree. Fit makes the nearest valid one: it makes
// what is missing, wraps what stands in the wrong place, and turns into paragraphs
// what cannot be there at all. It never drops text, and it repairs tables as editors
// do. This matters because an editor deletes from a shared document, for everyone, what
// its schema does not accept.
//
// # Markdown
//
// Parse reads CommonMark and GitHub's tables, strikethrough, task lists and bare
// links. Render writes it so that for each valid tree
//
//	Parse(Render(tree)) is tree
//
// and for each Markdown, Render(Parse(md)) does not change any more when it is read
// and written again. So a document can go to someone who knows Markdown only, and
// come back. The rules behind this:
//
//   - What Markdown cannot say is HTML, in the tags that TipTap writes: <u>, <mark>,
//     <sup>, <sub>, <a> with attributes, <span data-type="mention">, <img width>, and
//     <table> with Markdown in the cells for what bars cannot draw. Exactly these are
//     read back; all other HTML is text, and a block of it source code.
//   - Emphasis is written with delimiters where CommonMark reads them as meant, else
//     as <strong>, <em>, <s>: within words, beside blanks and punctuation, or where two
//     marks meet.
//   - A paragraph is one line. A hard break is a backslash at its end, a line end in a
//     text is &#10;. An empty paragraph is &nbsp;, as TipTap writes it.
//   - Lists are tight, and one that follows another takes the other marker. Fences are
//     longer than what is in them.
//   - A link around an image is the image's attribute href. Where the schema's code excludes
//     other marks, as TipTap's own does, a link wins over code on the same text, and code
//     over others: an address cannot be seen from the text, a font can.
//   - A node or mark outside the schema shows as its text.
//   - The empty paragraph that TipTap's trailingNode keeps at the end of a document is
//     not shown, and added when reading.
//
// Import tells, line by line, what a document does not hold as it was written: HTML that is
// kept as text, an image that leaves its paragraph. Nothing is dropped untold.
//
// What does not come back: a NUL, which is U+FFFD in Markdown; an empty string where
// null is the default of a language, and null beside an empty string in the
// attributes of a link; more lists and quotes within each other than 32.
//
// Markdown comes from outside, so that reading it is bounded: in size by MaxMarkdown,
// in nesting, and in time, by leaving markup as text where there is absurdly much of it.
// ParseLarge reads what a store has, in sections.
//
// RenderMap tells where each piece of Markdown comes from. Edit, Append and Replace
// change a document through its Markdown and leave the blocks alone that they do not
// concern, with all that Markdown does not show.
//
// # Changes
//
// Diff compares two trees and returns Ops: nodes inserted and deleted, attributes set,
// texts spliced word by word with only the formats that differ. Equal blocks are paired
// first, keeping the heaviest row that is in order in both, then those with the most
// words in common.
//
// # Shared documents
//
// TipTap keeps a document in a fragment of Yjs: an element for each node, with the
// attributes that are not null, numbers and booleans as such; a text for each row of
// text between them, with marks as formats {name: attributes}. Read shows a fragment as
// TipTap does. Write applies Diff to it in one transaction: what does not differ is not
// touched, so that carets stay, what others type at the same time stays, and updates
// are small. Inserted text has the format of the text on its left if it means the same,
// in the very words that are stored there. Seed makes the first update, the same one
// wherever it is made.
//
// An editor that sees such an update finds nothing to correct. What is there and our
// schema does not know, such as the nodes of an application's own extensions, stays as
// it is until the text around it goes; what nobody has yet is made to fit before it is
// written. Not touched either are values that no document has. A text at the top of a
// fragment, on which editors crash, is put into a paragraph.
//
// A node that changes its type, or moves, is another node with the same content: Yjs
// knows neither. What is typed into the old one at the same moment goes with it.
//
// # Sources
//
// CommonMark 0.31.2 and GitHub Flavored Markdown 0.29 for the syntax; the ProseMirror
// guide, chapter Schemas, for content expressions; TipTap 3.31.3 for the schema (its own
// answer is in testdata/tiptap.json); y-prosemirror for the shape of shared documents,
// with which bench/tiptap compares; Myers 1986 for the comparison of texts. The parser is goldmark.
//
// All functions but Write are pure, and a Schema is safe for concurrent use. Nothing here
// starts a goroutine or keeps state.
package prosemirror
