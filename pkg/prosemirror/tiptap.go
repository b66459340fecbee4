package prosemirror

import (
	"math"
	"slices"
	"sync"
)

// TipTap returns the schema that TipTap 3 builds from StarterKit with Highlight, Superscript,
// Subscript, Image, TableKit, TaskList, TaskItem and Mention, and with trailingNode, which
// StarterKit enables. Two extensions are adapted as in bench/tiptap: code excludes only
// itself, so that it may be bold or in a link, and an image has the attribute href. An
// editor without the adaptations shows such an image without its link, and deletes nothing.
func TipTap() *Schema { return tiptap() }

var tiptap = sync.OnceValue(func() *Schema {
	s, err := New(TipTapSpec())
	if err != nil {
		panic(err) // covered by tests
	}
	return s
})

// TipTapSpec returns the data of the TipTap schema for callers that adapt it. They own the
// result.
func TipTapSpec() Spec {
	cell := []AttrSpec{
		{Name: "colspan", Kind: Int, Default: 1, Min: 1, Max: 1000},
		{Name: "rowspan", Kind: Int, Default: 1, Min: 1, Max: 65534},
		{Name: "colwidth", Kind: NumList},
		{Name: "align", Kind: String, Enum: []string{"left", "right", "center"}},
	}
	return Spec{
		Top:      "doc",
		Trailing: "paragraph",
		Nodes: []NodeSpec{
			{Name: "paragraph", Content: "inline*", Group: "block"},
			{Name: "mention", Group: "inline", Inline: true, Attrs: []AttrSpec{
				{Name: "id", Kind: String},
				{Name: "label", Kind: String},
				{Name: "mentionSuggestionChar", Kind: String, Default: "@"},
			}},
			{Name: "blockquote", Content: "block+", Group: "block"},
			{Name: "bulletList", Content: "listItem+", Group: "block list"},
			{Name: "codeBlock", Content: "text*", Group: "block", Marks: "-", Code: true, Attrs: []AttrSpec{
				{Name: "language", Kind: String},
			}},
			{Name: "doc", Content: "block+"},
			{Name: "hardBreak", Group: "inline", Inline: true},
			{Name: "heading", Content: "inline*", Group: "block", Attrs: []AttrSpec{
				{Name: "level", Kind: Int, Default: 1, Min: 1, Max: 6},
			}},
			{Name: "horizontalRule", Group: "block"},
			{Name: "image", Group: "block", Attrs: []AttrSpec{
				{Name: "src", Kind: String},
				{Name: "alt", Kind: String},
				{Name: "title", Kind: String},
				{Name: "width", Kind: Number},
				{Name: "height", Kind: Number},
				{Name: "href", Kind: String}, // the image's link, ours
			}},
			{Name: "listItem", Content: "paragraph block*"},
			{Name: "orderedList", Content: "listItem+", Group: "block list", Attrs: []AttrSpec{
				{Name: "start", Kind: Int, Default: 1, Min: math.MinInt32, Max: math.MaxInt32},
				{Name: "type", Kind: String},
			}},
			{Name: "table", Content: "tableRow+", Group: "block"},
			{Name: "tableCell", Content: "block+", Attrs: cell},
			{Name: "tableHeader", Content: "block+", Attrs: cell},
			{Name: "tableRow", Content: "(tableCell | tableHeader)*"},
			{Name: "taskItem", Content: "paragraph+", Attrs: []AttrSpec{
				{Name: "checked", Kind: Bool, Default: false},
			}},
			{Name: "taskList", Content: "taskItem+", Group: "block list"},
			{Name: "text", Group: "inline"},
		},
		Marks: []MarkSpec{
			{Name: "link", Attrs: []AttrSpec{
				{Name: "href", Kind: String},
				{Name: "target", Kind: String, Default: "_blank"},
				{Name: "rel", Kind: String, Default: "noopener noreferrer nofollow"},
				{Name: "class", Kind: String},
				{Name: "title", Kind: String},
			}},
			{Name: "bold"},
			{Name: "italic"},
			{Name: "strike"},
			{Name: "underline"},
			{Name: "code"},
			{Name: "highlight"},
			{Name: "superscript"},
			{Name: "subscript"},
		},
	}
}

// WithNestedTasks returns spec with task items that hold other blocks after their paragraph,
// like TaskItem's option nested.
func (spec Spec) WithNestedTasks() Spec {
	return spec.withNode("taskItem", func(n *NodeSpec) { n.Content = "paragraph block*" })
}

// WithInlineImages returns spec with images inside text, like Image's option inline.
func (spec Spec) WithInlineImages() Spec {
	return spec.withNode("image", func(n *NodeSpec) { n.Group, n.Inline = "inline", true })
}

func (spec Spec) withNode(name string, change func(*NodeSpec)) Spec {
	spec.Nodes = slices.Clone(spec.Nodes)
	for i := range spec.Nodes {
		if spec.Nodes[i].Name == name {
			change(&spec.Nodes[i])
		}
	}
	return spec
}
