package tools

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"strings"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed notion_read_page.md
var notionReadPagePage string

type notionReadArgs struct {
	ID        string `json:"id"`
	PageToken string `json:"page_token"`
}

type notionRead struct {
	ID            string `json:"id"`
	Title         string `json:"title,omitempty"`
	URL           string `json:"url,omitempty"`
	Content       string `json:"content"`
	NextPageToken string `json:"next_page_token,omitempty"`
	Simulated     bool   `json:"simulated,omitempty"`
}

const (
	notionPerPage = "50" // blocks
	notionDepth   = 3
	notionNested  = 12 // requests for the children of blocks
)

func notionReadPage(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "notion_read_page", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true}.Describe(notionReadPagePage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a notionReadArgs) (tool.Result, error) {
		page, err := notionID(a.ID)
		if err != nil {
			return tool.Result{}, err
		}
		at, err := parseNotionPlace(a.PageToken)
		if err != nil {
			return tool.Result{}, err
		}
		out := notionRead{ID: page}
		if a.PageToken == "" {
			var p notionPage
			_, err := d.notionCall(ctx, egress.Request{Path: "/v1/pages/" + page}, &p)
			if err != nil && fault.KindOf(err) != fault.NotFound { // it may be a block
				return tool.Result{}, err
			}
			out.Title, out.URL = p.title(), p.URL
		}
		r := notionReader{d: d, nested: notionNested}
		blocks, next, reply, err := r.children(ctx, page, at.cursor)
		if err != nil {
			return tool.Result{}, err
		}
		out.Simulated = reply.Simulated
		content, at, err := r.fill(ctx, blocks, at, c.OutputCap-docReadRoom)
		switch {
		case err != nil:
			return tool.Result{}, err
		case at.block < len(blocks):
			out.NextPageToken = at.String()
		case next != "":
			out.NextPageToken = notionPlace{cursor: next}.String()
		}
		out.Content = content
		return tool.Object(out), nil
	}, func(a notionReadArgs) string { return a.ID }).When(d.notionReady), err
}

// notionPlace is a place in a page: bytes behind the beginning of a block's Markdown, where block
// counts from Notion's cursor.
type notionPlace struct {
	block, offset int
	cursor        string
}

func (p notionPlace) String() string { return fmt.Sprintf("%d.%d.%s", p.block, p.offset, p.cursor) }

func parseNotionPlace(token string) (p notionPlace, err error) {
	if token == "" {
		return p, nil
	}
	n, err := fmt.Sscanf(token+" ", "%d.%d.%s", &p.block, &p.offset, &p.cursor)
	if n < 2 || p.block < 0 || p.offset < 0 {
		return p, fault.New(fault.Invalid, "arguments.page_token: is not one of ours; pass next_page_token of the page before, or leave it out")
	}
	_ = err // there may be no cursor
	return p, nil
}

// notionReader reads blocks, with their children as far as its requests allow.
type notionReader struct {
	d      Deps
	nested int // requests that are left
}

func (r *notionReader) children(ctx context.Context, block, cursor string) ([]notionBlock, string, egress.Reply, error) {
	q := url.Values{"page_size": {notionPerPage}}
	if cursor != "" {
		q.Set("start_cursor", cursor)
	}
	var page notionList[notionBlock]
	reply, err := r.d.notionCall(ctx, egress.Request{Path: "/v1/blocks/" + url.PathEscape(block) + "/children", Query: q}, &page)
	return page.Results, page.NextCursor, reply, err
}

// fill writes blocks from a place on, until the room is used up, and returns the place of what
// comes next.
func (r *notionReader) fill(ctx context.Context, blocks []notionBlock, at notionPlace, room int) (string, notionPlace, error) {
	var content strings.Builder
	for ; at.block < len(blocks); at.block, at.offset = at.block+1, 0 {
		all, err := r.write(ctx, &blocks[at.block], "", 0)
		if err != nil {
			return "", at, err
		}
		if at.block+1 < len(blocks) && !sameList(&blocks[at.block], &blocks[at.block+1]) {
			all += "\n"
		}
		from := runeStart(all, at.offset)
		end := pageEnd(all, from, room)
		content.WriteString(all[from:end])
		if end < len(all) {
			at.offset = end
			return content.String(), at, nil
		}
		for _, c := range all[from:end] {
			room -= jsonSize(c)
		}
	}
	return content.String(), at, nil
}

// sameList reports whether two blocks in a row are items of one list.
func sameList(a, b *notionBlock) bool {
	const numbered = "numbered_list_item"
	return isItem(a) && isItem(b) && (a.Type == numbered) == (b.Type == numbered)
}

func isItem(b *notionBlock) bool {
	return strings.HasSuffix(b.Type, "_list_item") || b.Type == "to_do" || b.Type == "toggle" || b.Type == "table_row"
}

// write returns a block and its children as lines of Markdown.
func (r *notionReader) write(ctx context.Context, b *notionBlock, indent string, depth int) (string, error) {
	own := indent + strings.ReplaceAll(b.markdown(), "\n", "\n"+indent) + "\n"
	if b.Type == "table" || b.Type == "column_list" || b.Type == "column" || b.Type == "synced_block" {
		own = "" // they only hold others
	} else if isItem(b) {
		indent += "  "
	}
	if !b.HasChildren || b.Type == "child_page" || b.Type == "child_database" {
		return own, nil
	}
	more := indent + "[more: notion_read_page with the id " + b.ID + "]\n"
	if depth == notionDepth || r.nested == 0 {
		return own + more, nil
	}
	r.nested--
	blocks, next, _, err := r.children(ctx, b.ID, "")
	if err != nil {
		return "", err
	}
	var all strings.Builder
	all.WriteString(own)
	for i := range blocks {
		below, err := r.write(ctx, &blocks[i], indent, depth+1)
		if err != nil {
			return "", err
		}
		all.WriteString(below)
		if b.Type == "table" && i == 0 {
			all.WriteString(indent + "|" + strings.Repeat(" --- |", len(blocks[0].Content.Cells)) + "\n")
		}
	}
	if next != "" {
		all.WriteString(more)
	}
	return all.String(), nil
}
