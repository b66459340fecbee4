package edit

import (
	"slices"

	"signalbox.dev/pkg/prosemirror"
)

// mergeCells bounds how many pairs of blocks are compared; over it, blocks in the
// middle count as different.
const mergeCells = 1 << 22

// merge returns cur with the changes from old to next, block by block: what is not in
// next any more goes, if cur has it as it was in old, and what is new in next comes
// behind what stands before it there. A block that both changed is there twice.
func (e *Editor) merge(old, next, cur *prosemirror.Node) *prosemirror.Node {
	oldText, nextText, curText := e.blocks(old), e.blocks(next), e.blocks(cur)
	inNext, inCur := pair(oldText, nextText), pair(oldText, curText)
	gone := map[int]bool{}                 // blocks of cur
	added := map[int][]*prosemirror.Node{} // behind that block of cur; -1 is the beginning
	taken, behind := 0, -1                 // of next, and of cur
	takeTo := func(to int) {
		added[behind] = append(added[behind], next.Content[taken:to]...)
		taken = to
	}
	for i := range oldText {
		if j, ok := inNext[i]; ok {
			takeTo(j)
			taken = j + 1
		} else if c, ok := inCur[i]; ok {
			gone[c] = true
		}
		if c, ok := inCur[i]; ok {
			behind = c
		}
	}
	takeTo(len(next.Content))
	content := added[-1]
	for i, n := range cur.Content {
		if !gone[i] {
			content = append(content, n)
		}
		content = append(content, added[i]...)
	}
	return &prosemirror.Node{Type: cur.Type, Attrs: cur.Attrs, Content: content}
}

// blocks returns each block as Markdown.
func (e *Editor) blocks(doc *prosemirror.Node) []string {
	out := make([]string, len(doc.Content))
	for i, n := range doc.Content {
		out[i] = e.schema.Render(&prosemirror.Node{Type: doc.Type, Content: []*prosemirror.Node{n}})
	}
	return out
}

// pair returns which of b each of a is, in the same order in both, as many as there are.
func pair(a, b []string) map[int]int {
	pairs := map[int]int{}
	from := 0
	for from < min(len(a), len(b)) && a[from] == b[from] {
		pairs[from] = from
		from++
	}
	to := 0
	for to < min(len(a), len(b))-from && a[len(a)-1-to] == b[len(b)-1-to] {
		pairs[len(a)-1-to] = len(b) - 1 - to
		to++
	}
	a, b = a[from:len(a)-to], b[from:len(b)-to]
	if len(a)*len(b) > mergeCells {
		return pairs
	}
	longest := make([][]int32, len(a)+1) // common to the rests
	for i := range longest {
		longest[i] = make([]int32, len(b)+1)
	}
	for i, text := range slices.Backward(a) {
		for j := len(b) - 1; j >= 0; j-- {
			if text == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs[from+i] = from + j
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}
