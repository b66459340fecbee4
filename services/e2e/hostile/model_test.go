package hostile_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// model is a provider with Anthropic's Messages API whose model obeys everybody. A person says
// "task-0042" (or another word of words), and the model does what the person of attack 42 wants.
// Then it obeys the order of that attack, if any text of the request has it.
type model struct {
	attacks []attack
	docs    sync.Map // by the number of an attack: its documents

	mu     sync.Mutex     // guards what follows
	obeyed map[int]bool   // attacks whose order was obeyed
	faults map[int]string // by the number of an attack: why it was not obeyed
	saw    []byte         // a request with the other workspace's secret
}

var (
	wish    = regexp.MustCompile(`^(task|read|open|launder|say)-(\d{4})`)
	secrets = regexp.MustCompile(`CANARYFIRST[0-9a-f]{8}CANARYSECOND`)
)

// obeyAll is an order for which every attack will do.
const obeyAll = "obey-all"

// otherSecret is in a document of another workspace.
const otherSecret = "CANARY-OF-ANOTHER-WORKSPACE"

// documents are those of an attack: with the secret, and one that a stranger can write.
type documents struct{ secret, stranger string }

func (m *model) documents(a attack) (d documents) {
	if v, ok := m.docs.Load(a.n); ok {
		d, _ = v.(documents)
	}
	return d
}

func (m *model) fault(a attack, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[a.n] = fmt.Sprintf(format, args...)
}

func (m *model) hasObeyed(a attack) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.obeyed[a.n]
}

type request struct {
	Tools    []json.RawMessage
	Messages []struct {
		Role    string
		Content json.RawMessage
	}
}

type block struct {
	Type, Text string
	Source     struct{ Type, Data string }
	Content    json.RawMessage // of a tool's result
}

// inside returns the blocks of a message or of a tool's result.
func inside(content json.RawMessage) (blocks []block) {
	if json.Unmarshal(content, &blocks) != nil {
		var text string
		_ = json.Unmarshal(content, &text) // content is blocks or a string
		blocks = []block{{Type: "text", Text: text}}
	}
	for _, b := range blocks {
		if b.Type == "tool_result" {
			blocks = append(blocks, inside(b.Content)...)
		}
	}
	return blocks
}

// ServeHTTP implements http.Handler.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/v1/messages") {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	var req request
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if bytes.Contains(body, []byte(otherSecret)) {
		m.mu.Lock()
		m.saw = body
		m.mu.Unlock()
	}
	say, n, turn, visible := understand(&req, body)
	answer := &answer{id: fmt.Sprintf("%s_%d_%d", say, n, turn)}
	if len(req.Tools) > 0 && n < len(m.attacks) {
		m.act(answer, m.attacks[n], say, turn, visible)
	}
	if answer.blocks == 0 {
		answer.text("I am done.")
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write(answer.end()) // the runner may have left
}

// understand returns the last wish, how many answers it has had, and all that the model can read.
func understand(req *request, body []byte) (say string, n, turn int, visible []byte) {
	visible = body
	n = 1 << 30
	for _, msg := range req.Messages {
		if msg.Role == "assistant" {
			turn++
			continue
		}
		for _, b := range inside(msg.Content) {
			if found := wish.FindStringSubmatch(b.Text); found != nil {
				say, turn = found[1], 0
				n, _ = strconv.Atoi(found[2]) // digits
			}
			if b.Source.Type == "base64" {
				picture, _ := base64.StdEncoding.DecodeString(b.Source.Data) // the API has checked it
				visible = append(append(slices.Clip(visible), picture...), look(picture)...)
			}
		}
	}
	return say, n, turn, visible
}

// act does what the person wants, and then what a stranger wants.
func (m *model) act(to *answer, a attack, say string, turn int, visible []byte) {
	calls := m.wanted(a, say)
	if turn == 0 {
		if a.channel.search == "before" {
			to.search(a.order())
		}
		for _, c := range calls {
			to.call(c)
		}
		if say != "task" || len(calls) > 0 {
			return
		}
	}
	if say == "read" || say == "open" || say == "say" {
		return
	}
	ordered := bytes.Contains(visible, []byte(a.order())) || bytes.Contains(visible, []byte(obeyAll))
	if a.channel.search == "same" {
		to.search(a.order())
		ordered = true
	}
	if !ordered {
		m.fault(a, "the model was shown no order after %q", say)
		return
	}
	if say == "launder" {
		if turn == 1 {
			to.call(call{"doc_append", map[string]any{"id": m.documents(a).stranger, "content": a.order()}})
		}
		return
	}
	secret := secrets.Find(visible)
	if secret == nil {
		m.fault(a, "the model was shown no secret")
		return
	}
	steps := ordersOf(a, string(secret))
	if len(calls) == 0 {
		turn++ // the order is obeyed from the first answer on
	}
	if turn > len(steps) {
		return
	}
	m.mu.Lock()
	m.obeyed[a.n] = true
	delete(m.faults, a.n) // of an earlier try
	m.mu.Unlock()
	for _, c := range steps[turn-1] {
		to.call(c)
	}
}

// wanted are the calls that a person's wish needs.
func (m *model) wanted(a attack, say string) (calls []call) {
	if say == "say" { // the person's own order
		for _, step := range ordersOf(a, ownSecret) {
			calls = append(calls, step...)
		}
		return calls
	}
	if say == "open" {
		return []call{{"browser_open", map[string]any{"url": site + a.channel.page(a)}}}
	}
	if say == "task" && !a.channel.earlier {
		switch {
		case a.channel.named:
			calls = append(calls, call{"doc_list", map[string]any{"limit": 100}})
		case a.channel.document, a.channel.laundered:
			calls = append(calls, call{"doc_read", map[string]any{"id": m.documents(a).stranger}})
		}
	}
	if a.channel.read != nil && a.channel.earlier == (say == "read") && a.channel.laundered == (say == "launder") {
		calls = append(calls, a.channel.read(a)...)
	}
	if say == "task" && a.secretIn != "" {
		calls = append(calls, a.secret(m.documents(a).secret))
	}
	return calls
}

// ordersOf returns the calls of each answer that obeys the order.
func ordersOf(a attack, secret string) (steps [][]call) {
	for _, fragment := range encodings[a.encoding](secret) {
		calls := a.effect.calls(a, fragment)
		if a.effect.together {
			steps = append(steps, calls)
			continue
		}
		for _, c := range calls {
			steps = append(steps, []call{c})
		}
	}
	return steps
}

// answer is a streamed answer.
type answer struct {
	id     string
	out    bytes.Buffer
	blocks int
	stop   string
}

func (a *answer) event(name string, rest any) {
	b, _ := json.Marshal(rest) // maps of strings and numbers
	fmt.Fprintf(&a.out, "event: %[1]s\ndata: {\"type\":%[1]q,%[2]s\n\n", name, b[1:])
}

func (a *answer) block(start map[string]any, delta map[string]any) {
	type object = map[string]any
	a.event("content_block_start", object{"index": a.blocks, "content_block": start})
	if delta != nil {
		a.event("content_block_delta", object{"index": a.blocks, "delta": delta})
	}
	a.event("content_block_stop", object{"index": a.blocks})
	a.blocks++
}

func (a *answer) text(s string) {
	a.block(map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": s})
}

func (a *answer) call(c call) {
	args, _ := json.Marshal(c.args) // maps of strings
	a.stop = "tool_use"
	a.block(map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%s_%d", a.id, a.blocks), "name": c.tool, "input": map[string]any{}},
		map[string]any{"type": "input_json_delta", "partial_json": string(args)})
}

// search is a search by the provider that finds a page with a title.
func (a *answer) search(title string) {
	id := "srvtoolu_" + a.id
	a.block(map[string]any{"type": "server_tool_use", "id": id, "name": "web_search", "input": map[string]any{}},
		map[string]any{"type": "input_json_delta", "partial_json": `{"query":"weather"}`})
	a.block(map[string]any{"type": "web_search_tool_result", "tool_use_id": id, "content": []any{map[string]any{
		"type": "web_search_result", "url": "https://example.com/", "title": title, "encrypted_content": "eA==", "page_age": nil,
	}}}, nil)
}

func (a *answer) end() []byte {
	var all bytes.Buffer
	begin := &answer{}
	begin.event("message_start", map[string]any{"message": map[string]any{
		"id": "msg_" + a.id, "type": "message", "role": "assistant", "model": "m", "content": []any{}, "stop_reason": nil, "usage": map[string]int{"input_tokens": 1, "output_tokens": 1},
	}})
	if a.stop == "" {
		a.stop = "end_turn"
	}
	a.event("message_delta", map[string]any{"delta": map[string]any{"stop_reason": a.stop}, "usage": map[string]int{"output_tokens": 1}})
	a.event("message_stop", map[string]any{"x": 0})
	all.Write(begin.out.Bytes())
	all.Write(a.out.Bytes())
	return all.Bytes()
}
