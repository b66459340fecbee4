package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Session is a conversation, as GET /api/sessions describes it.
type Session struct {
	ID        string `json:"id"`
	Title     string `json:"title"`
	Provider  string `json:"provider"`
	Model     string `json:"model"`
	UpdatedAt string `json:"updated_at"`
	// Tools are the names of the enabled tools; nil for those of the preset.
	Tools *[]string `json:"tools"`
}

// Message is a stored message of a session.
type Message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	RunID   string          `json:"run_id"`
}

// SessionDetails is a session with its messages.
type SessionDetails struct {
	Session   Session   `json:"session"`
	Messages  []Message `json:"messages"`
	ActiveRun *struct {
		ID string `json:"id"`
	} `json:"active_run"`
}

// Document is a document; lists leave Content out.
type Document struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Content   string `json:"content"`
	UpdatedAt string `json:"updated_at"`
	Sequence  int64  `json:"sequence"`
}

// Models are the models that a workspace can call, as GET /api/models describes them.
type Models struct {
	Models   []Model `json:"models"`
	Problems []struct {
		Provider string `json:"provider"`
		Reason   string `json:"reason"`
	} `json:"problems"`
}

// Model is a model that a provider's account can call.
type Model struct {
	ID       string `json:"id"`
	Provider string `json:"provider"`
	Name     string `json:"name"`
	Context  *int64 `json:"context"`
	Prices   *struct {
		Input  float64 `json:"input"`
		Output float64 `json:"output"`
	} `json:"prices"`
	Abilities struct {
		Tools     bool `json:"tools"`
		Images    bool `json:"images"`
		Reasoning bool `json:"reasoning"`
		WebSearch bool `json:"web_search"`
	} `json:"abilities"`
	Simulated bool `json:"simulated"`
	Default   bool `json:"default"`
}

// About lists the abilities of the model.
func (m Model) About() string {
	var words []string
	for _, a := range []struct {
		has  bool
		word string
	}{
		{m.Default, "default"},
		{m.Simulated, "simulated"},
		{m.Abilities.Tools, "tools"},
		{m.Abilities.Images, "images"},
		{m.Abilities.Reasoning, "reasoning"},
		{m.Abilities.WebSearch, "web search"},
	} {
		if a.has {
			words = append(words, a.word)
		}
	}
	return strings.Join(words, ", ")
}

// Tool is a tool that a session can enable.
type Tool struct {
	Name              string `json:"name"`
	Description       string `json:"description"`
	Available         bool   `json:"available"`
	UnavailableReason string `json:"unavailable_reason"`
	Always            bool   `json:"always"`
}

func sessionPath(id string) string  { return "/api/sessions/" + url.PathEscape(id) }
func documentPath(id string) string { return "/api/documents/" + url.PathEscape(id) }

// CreateSession makes a session.
func (c *Client) CreateSession(ctx context.Context, fields map[string]any) (Session, error) {
	var out struct{ Session Session }
	if err := c.call(ctx, http.MethodPost, "/api/sessions", fields, &out); err != nil {
		return Session{}, fmt.Errorf("create a session: %w", err)
	}
	return out.Session, nil
}

// UpdateSession changes a session's fields.
func (c *Client) UpdateSession(ctx context.Context, id string, fields map[string]any) (Session, error) {
	var out struct{ Session Session }
	if err := c.call(ctx, http.MethodPatch, sessionPath(id), fields, &out); err != nil {
		return Session{}, fmt.Errorf("change the session: %w", err)
	}
	return out.Session, nil
}

// Cancel stops the session's runs.
func (c *Client) Cancel(ctx context.Context, session string) error {
	if err := c.call(ctx, http.MethodPost, sessionPath(session)+"/cancel", map[string]any{}, nil); err != nil {
		return fmt.Errorf("stop the run: %w", err)
	}
	return nil
}

// Compact makes the session's next answer begin with a summary of its older messages.
func (c *Client) Compact(ctx context.Context, session string) error {
	if err := c.call(ctx, http.MethodPost, sessionPath(session)+"/compact", nil, nil); err != nil {
		return fmt.Errorf("compact the session: %w", err)
	}
	return nil
}

// Session reads a session with its messages.
func (c *Client) Session(ctx context.Context, id string) (SessionDetails, error) {
	return Get[SessionDetails](ctx, c, sessionPath(id))
}

// Document reads a document with its content.
func (c *Client) Document(ctx context.Context, id string) (Document, error) {
	out, err := Get[struct{ Document Document }](ctx, c, documentPath(id))
	return out.Document, err
}

// Models reads the models that the workspace can call.
func (c *Client) Models(ctx context.Context) (Models, error) {
	return Get[Models](ctx, c, "/api/models")
}

// Warning is a piece of Markdown that a document does not hold as it was written.
type Warning struct {
	Line   int    `json:"line"`
	What   string `json:"what"`
	KeptAs string `json:"kept_as"`
}

// UpdateDocument changes a document's fields. It returns the response and its warnings.
func (c *Client) UpdateDocument(ctx context.Context, id string, fields map[string]any) (json.RawMessage, []Warning, error) {
	var raw json.RawMessage
	var out struct{ Warnings []Warning }
	err := c.call(ctx, http.MethodPatch, documentPath(id), fields, &raw)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("change the document: %w", err)
	}
	return raw, out.Warnings, nil
}

// Get reads a path of the API as T.
func Get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var out T
	if err := c.call(ctx, http.MethodGet, path, nil, &out); err != nil {
		return out, fmt.Errorf("read %s: %w", path, err)
	}
	return out, nil
}

// maxPage is how many items of a list the API returns at once.
const maxPage = 100

// List reads the first limit items of a paged list, such as "sessions" or "mcp-servers/audit",
// as T.
// query narrows it by title or name.
func List[T any](ctx context.Context, c *Client, what, query string, limit int) ([]T, error) {
	all, cursor := []T{}, ""
	for {
		var page map[string]json.RawMessage
		q := url.Values{"limit": {strconv.Itoa(min(limit-len(all), maxPage))}}
		for name, value := range map[string]string{"q": query, "cursor": cursor} {
			if value != "" {
				q.Set(name, value)
			}
		}
		if err := c.call(ctx, http.MethodGet, "/api/"+what+"?"+q.Encode(), nil, &page); err != nil {
			return nil, fmt.Errorf("list the %s: %w", what, err)
		}
		var items []T
		if err := json.Unmarshal(page[path.Base(what)], &items); err != nil {
			return nil, fmt.Errorf("list the %s: %w", what, err)
		}
		all, cursor = append(all, items...), ""
		if err := json.Unmarshal(page["next_cursor"], &cursor); err != nil || cursor == "" || len(all) >= limit {
			return all, nil //nolint:nilerr // the last page has no cursor
		}
	}
}

// Find completes an abbreviated id: among the first hundred items of a list, exactly one
// must have an id that begins or ends so. A whole id is returned unchanged.
func (c *Client) Find(ctx context.Context, what, id string) (string, error) {
	if len(id) == len("00000000-0000-0000-0000-000000000000") {
		return id, nil
	}
	if id == "" {
		return "", fmt.Errorf("the id is empty: give the id of one of the %s", what)
	}
	all, err := List[struct{ ID string }](ctx, c, what, "", maxPage)
	if err != nil {
		return "", err
	}
	var found []string
	for _, item := range all {
		if strings.HasPrefix(item.ID, id) || strings.HasSuffix(item.ID, id) {
			found = append(found, item.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no id among the %d newest %s begins or ends with %q: give the whole id", len(all), what, id)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%q abbreviates %d %s: give more of the id", id, len(found), what)
}
