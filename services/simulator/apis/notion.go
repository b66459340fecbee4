package apis

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// notionError is an error as Notion's API writes it.
func notionError(e *apiError) any {
	return object{"object": "error", "status": e.status, "code": e.reason, "message": e.message}
}

const maxChildren = 100 // of a request

func (s *Server) notionRoutes() {
	for pattern, do := range map[string]func(r *request) (object, *apiError){
		"POST /v1/search":                searchPages,
		"GET /v1/pages/{id}":             func(r *request) (object, *apiError) { return r.notionPage() },
		"GET /v1/blocks/{id}/children":   listChildren,
		"PATCH /v1/blocks/{id}/children": appendChildren,
	} {
		s.handle("notion", pattern, func(r *request) (object, *apiError) {
			if r.Header.Get("Notion-Version") == "" {
				return nil, refuse(http.StatusBadRequest, "missing_version", "Notion-Version header should be defined, instead was `undefined`.")
			}
			return do(r)
		})
	}
}

func notFound(id string) *apiError {
	return refuse(http.StatusNotFound, "object_not_found", "Could not find block with ID: %s. Make sure the relevant pages and databases are shared with your integration.", id)
}

// notionID is the id in a path, with or without dashes, as Notion stores it.
func (r *request) notionID() (string, *apiError) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return "", refuse(http.StatusBadRequest, "validation_error", "path failed validation: path.id should be a valid uuid, instead was `%q`.", r.PathValue("id"))
	}
	return id.String(), nil
}

func (r *request) notionPage() (object, *apiError) {
	id, err := r.notionID()
	if err != nil {
		return nil, err
	}
	for _, p := range r.acc.pages {
		if p["id"] == id {
			return p, nil
		}
	}
	return nil, notFound(id)
}

// cursorPage cuts a list as Notion does, whose cursors are the ids of what comes next.
func cursorPage(all []object, size any, cursor string) (object, *apiError) {
	n := maxChildren
	switch v := size.(type) {
	case float64:
		n = int(v)
	case string:
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			n = 0
		}
	}
	if n < 1 || n > 100 {
		return nil, refuse(http.StatusBadRequest, "validation_error", "query failed validation: query.page_size should be ≤ `100` and ≥ `1`.")
	}
	from := 0
	if cursor != "" {
		if from = slices.IndexFunc(all, func(o object) bool { return o["id"] == cursor }); from < 0 {
			return nil, refuse(http.StatusBadRequest, "validation_error", "The start_cursor provided is invalid: %s", cursor)
		}
	}
	end := min(from+n, len(all))
	out := object{"object": "list", "results": all[from:end], "has_more": end < len(all), "next_cursor": nil}
	if end < len(all) {
		out["next_cursor"] = all[end]["id"]
	}
	return out, nil
}

func searchPages(r *request) (object, *apiError) {
	query := strings.ToLower(text(r.body, "query"))
	var found []object
	for _, p := range r.acc.pages {
		if strings.Contains(strings.ToLower(pageTitle(p)), query) {
			found = append(found, p)
		}
	}
	slices.SortStableFunc(found, func(a, b object) int {
		return strings.Compare(text(b, "last_edited_time"), text(a, "last_edited_time"))
	})
	var size any
	if v, ok := r.body["page_size"]; ok {
		size = v
	}
	return cursorPage(found, size, text(r.body, "start_cursor"))
}

func pageTitle(p object) string {
	properties, _ := p["properties"].(object)
	title, _ := properties["title"].(object)
	parts, _ := title["title"].([]object)
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(text(part, "plain_text"))
	}
	return b.String()
}

func listChildren(r *request) (object, *apiError) {
	id, err := r.notionID()
	if err != nil {
		return nil, err
	}
	all, ok := r.acc.blocks[id]
	if !ok {
		return nil, notFound(id)
	}
	q := r.URL.Query()
	var size any
	if v := q.Get("page_size"); v != "" {
		size = v
	}
	return cursorPage(all, size, q.Get("start_cursor"))
}

func appendChildren(r *request) (object, *apiError) {
	id, err := r.notionID()
	if err != nil {
		return nil, err
	}
	if _, ok := r.acc.blocks[id]; !ok {
		return nil, notFound(id)
	}
	children, _ := r.body["children"].([]any)
	if len(children) == 0 || len(children) > maxChildren {
		return nil, refuse(http.StatusBadRequest, "validation_error", "body failed validation: body.children.length should be ≤ `100` and ≥ `1`, instead was `%d`.", len(children))
	}
	if len(r.acc.blocks[id])+len(children) > maxThings {
		return nil, refuse(http.StatusBadRequest, "validation_error", "the page has too many blocks")
	}
	added, err := r.addBlocks(children)
	if err != nil {
		return nil, err
	}
	r.acc.blocks[id] = append(r.acc.blocks[id], added...)
	return object{"object": "list", "results": added, "has_more": false, "next_cursor": nil}, nil
}

// addBlocks stores blocks with their children, which need a parent still.
func (r *request) addBlocks(all []any) (added []object, err *apiError) {
	for i, c := range all {
		b, _ := c.(object)
		kind := text(b, "type")
		content, ok := b[kind].(object)
		if kind == "" || !ok {
			return nil, refuse(http.StatusBadRequest, "validation_error", "body failed validation: body.children[%d] should have a type and its content.", i)
		}
		if err := finishText(content); err != nil {
			return nil, err
		}
		children, _ := content["children"].([]any)
		delete(content, "children")
		below, err := r.addBlocks(children)
		if err != nil {
			return nil, err
		}
		fresh := object{"object": "block", "id": uuid.NewString(), "type": kind, kind: content, "has_children": len(below) > 0}
		fresh["created_time"] = minutes(r.now)
		r.acc.blocks[text(fresh, "id")] = below
		added = append(added, fresh)
	}
	return added, nil
}

// minutes writes a time as Notion does, which counts minutes.
func minutes(t time.Time) string { return t.UTC().Truncate(time.Minute).Format(time.RFC3339) }

// finishText checks the rich text of a block and adds what Notion adds to it.
func finishText(content object) *apiError {
	parts, _ := content["rich_text"].([]any)
	if len(parts) > 100 {
		return refuse(http.StatusBadRequest, "validation_error", "body failed validation: rich_text.length should be ≤ `100`, instead was `%d`.", len(parts))
	}
	for _, p := range parts {
		part, _ := p.(object)
		inner, ok := part["text"].(object)
		if !ok {
			return refuse(http.StatusBadRequest, "validation_error", "body failed validation: rich_text should have text.")
		}
		said := text(inner, "content")
		if n := len([]rune(said)); n > 2000 {
			return refuse(http.StatusBadRequest, "validation_error", "body failed validation: rich_text.text.content.length should be ≤ `2000`, instead was `%d`.", n)
		}
		part["type"], part["plain_text"] = "text", said
		if link, ok := inner["link"].(object); ok {
			part["href"] = link["url"]
		}
	}
	return nil
}
