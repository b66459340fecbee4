package anthropic

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

const (
	maxBreakpoints  = 4
	minBudget       = 1_024
	cacheControl    = `"cache_control":{"type":"ephemeral"}`
	emptySchema     = `{"type":"object","properties":{}}`
	textBeforeFirst = "(The conversation begins here.)"
	textToGoOn      = "Go on."
)

// Build returns the body of a request. It is deterministic, which prompt caches rely on.
func Build(req *llm.Request) ([]byte, error) {
	turns, err := llm.Turns(req.Messages, wire)
	if err != nil {
		return nil, llm.Refuse(llm.KindInvalid, "The conversation cannot be sent: %v.", err)
	}
	b := builder{req: req, turns: turns, options: llm.ReadOptions(req.Options[Dialect])}
	return b.build()
}

// wire describes this dialect for llm.Turns.
var wire = llm.Wire{
	Dialect: Dialect,
	Calls:   rawCalls,
	IDByte: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	},
	MaxID: 64,
}

func rawCalls(raw json.RawMessage) (ids []string, ok bool) {
	r := jscan.NewReader(raw)
	if !r.Array() {
		return nil, false
	}
	for r.Elem() {
		block := r.Skip()
		if jscan.KindOf(block) != jscan.Object {
			return nil, false
		}
		if jscan.MemberString(block, "type") == "tool_use" {
			ids = append(ids, jscan.MemberString(block, "id"))
		}
	}
	return ids, r.Done()
}

type builder struct {
	req     *llm.Request
	turns   []llm.Turn
	options llm.Options
	out     []byte
	breaks  int // cache breakpoints set
}

func (b *builder) build() ([]byte, error) {
	b.out = append(b.out, `{"model":`...)
	b.out = jscan.AppendString(b.out, b.req.Model)
	b.out = append(b.out, `,"stream":true`...)
	b.limits()
	b.format()
	b.tools()
	b.system()
	if b.req.Meta.User != "" && b.options.Free("metadata") {
		b.out = append(b.out, `,"metadata":{"user_id":`...)
		b.out = jscan.AppendString(b.out, b.req.Meta.User)
		b.out = append(b.out, '}')
	}
	b.out = b.options.Append(b.out)
	if err := b.messages(); err != nil {
		return nil, err
	}
	return append(b.out, '}'), nil
}

// limits writes the parameters that bound and steer the answer. With thinking the API accepts no
// temperature, and max_tokens must exceed the budget.
func (b *builder) limits() {
	maxTokens := b.req.MaxOutputTokens
	if maxTokens <= 0 {
		maxTokens = defaultMaxTokens
	}
	thinking := b.thinking()
	if thinking {
		budget := max(b.req.Reasoning.Tokens(), minBudget)
		if maxTokens <= budget {
			maxTokens += budget
		}
		b.out = append(b.out, `,"thinking":{"type":"enabled","budget_tokens":`...)
		b.out = strconv.AppendInt(b.out, int64(budget), 10)
		b.out = append(b.out, '}')
	}
	if b.options.Free("max_tokens") {
		b.out = append(b.out, `,"max_tokens":`...)
		b.out = strconv.AppendInt(b.out, int64(maxTokens), 10)
	}
	if t := b.req.Temperature; t != nil && !thinking && b.options.Free("temperature") && b.options.Free("thinking") {
		b.out = append(b.out, `,"temperature":`...)
		b.out = strconv.AppendFloat(b.out, min(max(*t, 0), 1), 'g', -1, 64)
	}
}

// maxUnions is how many anyOf and lists of types the API accepts in a schema.
const maxUnions = 16

// format asks for an answer in JSON, if the API can enforce the schema. It refuses recursive
// schemas, and citations, which its own search makes.
func (b *builder) format() {
	strict := llm.StrictOf(b.req.Format)
	searches := slices.ContainsFunc(b.req.Tools, func(t llm.ToolDef) bool { return t.Provider != "" })
	if !strict.OK || strict.Refs || strict.Unions > maxUnions || searches || !b.options.Free("output_config") {
		return
	}
	b.out = append(b.out, `,"output_config":{"format":{"type":"json_schema","schema":`...)
	b.out = jscan.AppendCompact(b.out, b.req.Format)
	b.out = append(b.out, "}}"...)
}

// thinking reports whether thinking can be requested. In the middle of a tool loop the API
// refuses it unless the loop's first answer begins with a thinking block, which an answer of
// another provider does not.
func (b *builder) thinking() bool {
	if !b.req.Reasoning.Enabled() || !b.options.Free("thinking") {
		return false
	}
	first := -1
	for i := len(b.turns) - 1; i >= 0; i-- {
		t := &b.turns[i]
		if t.Role == llm.Assistant && (len(t.Calls) > 0 || i == len(b.turns)-1) {
			first = i
		} else if t.Role == llm.Assistant || i == 0 || len(b.turns[i-1].Calls) == 0 {
			break
		}
	}
	return first < 0 || beginsWithThinking(&b.turns[first])
}

func beginsWithThinking(t *llm.Turn) bool {
	if t.Raw == nil {
		return len(t.Parts) > 0 && thinkingBlock(&t.Parts[0]) != nil
	}
	r := jscan.NewReader(t.Raw)
	if !r.Array() || !r.Elem() {
		return false
	}
	k := kindOf(jscan.MemberString(r.Skip(), "type"))
	return k == kindThinking || k == kindRedacted
}

func (b *builder) tools() {
	var defs [][]byte
	for i := range b.req.Tools {
		if def := toolDef(&b.req.Tools[i]); def != nil {
			defs = append(defs, def)
		}
	}
	if len(defs) == 0 {
		return
	}
	b.out = append(b.out, `,"tools":[`...)
	for i, def := range defs {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		if i == len(defs)-1 && b.toolBreak() && jscan.Member(def, "cache_control") == nil {
			b.breaks++
			b.out = append(b.out, def[:len(def)-1]...)
			b.out = append(b.out, ","+cacheControl+"}"...)
			continue
		}
		b.out = append(b.out, def...)
	}
	b.out = append(b.out, ']')
	b.toolChoice()
}

// toolBreak reports whether the tools get a cache breakpoint: two are reserved for the
// messages, and the system prompt may use more than one.
func (b *builder) toolBreak() bool {
	marked := 0
	for i := range b.req.System {
		if b.req.System[i].Cache {
			marked++
		}
	}
	return !b.req.NoCache && marked < maxBreakpoints-2
}

func toolDef(t *llm.ToolDef) []byte {
	if t.Provider != "" {
		if t.Provider != Dialect || jscan.KindOf(t.Definition) != jscan.Object || !jscan.Valid(t.Definition) {
			return nil
		}
		return jscan.AppendCompact(nil, t.Definition)
	}
	def := append([]byte(`{"name":`), jscan.AppendString(nil, llm.ToolName(t.Name, maxToolName))...)
	if t.Description != "" {
		def = append(def, `,"description":`...)
		def = jscan.AppendString(def, t.Description)
	}
	def = append(def, `,"input_schema":`...)
	if jscan.KindOf(t.Schema) == jscan.Object && jscan.Valid(t.Schema) {
		def = jscan.AppendCompact(def, t.Schema)
	} else {
		def = append(def, emptySchema...)
	}
	return append(def, '}')
}

func (b *builder) toolChoice() {
	if !b.options.Free("tool_choice") {
		return
	}
	mode := b.req.Choice.Mode
	if b.thinking() && mode != llm.ChoiceNone {
		mode = llm.ChoiceAuto // the API accepts no other mode with thinking
	}
	switch mode {
	case llm.ChoiceNone:
		b.out = append(b.out, `,"tool_choice":{"type":"none"}`...)
	case llm.ChoiceRequired:
		b.out = append(b.out, `,"tool_choice":{"type":"any"}`...)
	case llm.ChoiceTool:
		b.out = append(b.out, `,"tool_choice":{"type":"tool","name":`...)
		b.out = jscan.AppendString(b.out, llm.ToolName(b.req.Choice.Name, maxToolName))
		b.out = append(b.out, '}')
	}
}

// system writes the system prompt: the request's blocks, then the system messages of the
// conversation, for which this dialect has no other place.
func (b *builder) system() {
	blocks := slices.Clone(b.req.System)
	for i := range b.turns {
		if t := &b.turns[i]; t.Role == llm.System {
			for j := range t.Parts {
				blocks = append(blocks, llm.SystemBlock{Text: t.Parts[j].Text})
			}
		}
	}
	blocks = slices.DeleteFunc(blocks, func(s llm.SystemBlock) bool { return strings.TrimSpace(s.Text) == "" })
	if len(blocks) == 0 {
		return
	}
	if !slices.ContainsFunc(blocks, func(s llm.SystemBlock) bool { return s.Cache }) {
		blocks[len(blocks)-1].Cache = true
	}
	b.out = append(b.out, `,"system":[`...)
	for i, s := range blocks {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		b.out = append(b.out, `{"type":"text","text":`...)
		b.out = jscan.AppendString(b.out, s.Text)
		if s.Cache && !b.req.NoCache && b.breaks < maxBreakpoints-2 {
			b.breaks++
			b.out = append(b.out, ","+cacheControl...)
		}
		b.out = append(b.out, '}')
	}
	b.out = append(b.out, ']')
}
