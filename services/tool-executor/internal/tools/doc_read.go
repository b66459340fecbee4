package tools

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"unicode/utf8"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed doc_read.md
var docReadPage string

type docReadArgs struct {
	ID        string `json:"id"`
	PageToken string `json:"page_token"`
}

type docPage struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	Content       string `json:"content"`
	NextPageToken string `json:"next_page_token,omitempty"`
	Changed       bool   `json:"changed,omitempty"`
}

// docReadRoom is the space in a result for everything but the content. A name of 200
// characters that are all escaped takes 1,200 bytes.
const docReadRoom = 2 << 10

func docRead(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "doc_read", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true}.Describe(docReadPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a docReadArgs) (tool.Result, error) {
		var offset int
		var sequence int64
		if a.PageToken != "" {
			if n, err := fmt.Sscanf(a.PageToken, "%d.%d", &offset, &sequence); n != 2 || err != nil || offset < 0 {
				return tool.Errorf("invalid_arguments", "arguments.page_token: unknown; pass the next_page_token of the previous page, or leave it out"), nil
			}
		}
		res, err := d.Documents.Read(ctx, &documentv1.ReadRequest{Id: a.ID})
		if err != nil {
			return tool.Result{}, docError(err)
		}
		doc, content := res.GetDocument(), res.GetMarkdown()
		page := docPage{ID: doc.GetId(), Name: doc.GetName(), Changed: a.PageToken != "" && sequence != doc.GetSequence()}
		if a.PageToken == "" {
			sequence = doc.GetSequence()
		}
		offset = runeStart(content, offset)
		end := pageEnd(content, offset, c.OutputCap-docReadRoom)
		if end < len(content) {
			page.NextPageToken = fmt.Sprintf("%d.%d", end, sequence)
		}
		page.Content = content[offset:end]
		return tool.Object(page), nil
	}, func(a docReadArgs) string { return a.ID }), err
}

// runeStart returns the start of the character at i. The offset may be inside of one, because
// the document may have changed since the token was made.
func runeStart(s string, i int) int {
	i = min(i, len(s))
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// pageEnd returns the end of a page that begins at from and takes at most room bytes of JSON.
// It ends after a line break if that wastes less than half of the room.
func pageEnd(s string, from, room int) int {
	end := from
	for i, r := range s[from:] {
		size := jsonSize(r)
		if room < size {
			if cut := strings.LastIndexByte(s[from:end], '\n') + 1; cut > (end-from)/2 {
				return from + cut
			}
			return end
		}
		room -= size
		end = from + i + utf8.RuneLen(r)
	}
	return end
}

// jsonSize returns an upper bound of the bytes that r takes in a JSON string.
func jsonSize(r rune) int {
	switch {
	case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t':
		return 2
	case r < ' ' || r == '\u2028' || r == '\u2029' || r == utf8.RuneError:
		return 6
	}
	return utf8.RuneLen(r)
}
