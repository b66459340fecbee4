package llmtest

import (
	"encoding/json"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// Conversation is a request that both dialects have to put on the wire.
type Conversation struct {
	Name string
	Req  llm.Request
}

const (
	thinkingRaw = `[{"type":"thinking","thinking":"Let me see.","signature":"EqQBCgIYAg=="},{"type":"hologram","n":12345678901234567890, "x": [ ]},{"type":"text","text":"Creating."},` +
		`{"type":"tool_use","id":"toolu_01","name":"doc_create","input":{"name": "A", "n": 9007199254740993}},{"type":"tool_use","id":"toolu_02","name":"get_current_datetime","input":{}}]`
	thinkingContent = `[{"type":"reasoning","text":"Let me see.","providerOptions":{"anthropic":{"signature":"EqQBCgIYAg=="}}},{"type":"text","text":"Creating."},` +
		`{"type":"tool-call","toolCallId":"toolu_01","toolName":"doc_create","input":{"name":"A","n":9007199254740993}},{"type":"tool-call","toolCallId":"toolu_02","toolName":"get_current_datetime","input":{}}]`
	thinkingResults = `[{"type":"tool-result","toolCallId":"toolu_02","toolName":"get_current_datetime","output":{"type":"json","value":{"iso":"2026-11-21"}}},` +
		`{"type":"tool-result","toolCallId":"toolu_01","toolName":"doc_create","output":{"type":"error-json","value":{"error":"name is taken"}}}]`

	searchRaw = `[{"type":"text","text":"I'll search."},{"type":"server_tool_use","id":"srvtoolu_01","name":"web_search","input":{"query": "go"}},` +
		`{"type":"web_search_tool_result","tool_use_id":"srvtoolu_01","content":[{"type":"web_search_result","title":"Go","url":"https://go.dev","encrypted_content":"Eqgf"}]},` +
		`{"type":"text","text":""},{"type":"text","text":"Go is out","citations":[{"type":"web_search_result_location","url":"https://go.dev","encrypted_index":"Eo8B"}]}]`
	searchContent = `[{"type":"text","text":"I'll search."},{"type":"tool-call","toolCallId":"srvtoolu_01","toolName":"web_search","input":{"query":"go"},"providerExecuted":true},` +
		`{"type":"tool-result","toolCallId":"srvtoolu_01","toolName":"web_search","output":{"type":"json","value":[{"url":"https://go.dev"}]}},{"type":"text","text":"Go is out"}]`
	pausedRaw = `[{"type":"text","text":"Looking. \n"},{"type":"server_tool_use","id":"srvtoolu_09","name":"web_search","input":{"query":"x"}}]`
	pausedTxt = `[{"type":"text","text":"Looking. \n"},{"type":"tool-call","toolCallId":"srvtoolu_09","toolName":"web_search","input":{"query":"x"},"providerExecuted":true}]`

	chatRaw = `[{"role":"assistant","content":null,"reasoning_content":"Hm","reasoning_details":[{"type":"reasoning.text","text":"Hm","signature":"S"}],` +
		`"tool_calls":[{"id":"functions.doc_read:0","type":"function","function":{"name":"doc_read","arguments":"{\"id\": \"d1\"}"},"extra_content":{"google":{"thought_signature":"TS"}}}],"annotations":[],"x_new":1}]`
	chatContent = `[{"type":"reasoning","text":"Hm"},{"type":"tool-call","toolCallId":"functions.doc_read:0","toolName":"doc_read","input":{"id":"d1"}}]`
	chatResult  = `[{"type":"tool-result","toolCallId":"functions.doc_read:0","toolName":"doc_read","output":{"type":"text","value":"# A\n"}}]`

	png = "iVBORw0KGgo="
)

func user(content string) llm.Message {
	return llm.Message{Role: llm.User, Content: json.RawMessage(content)}
}

func answer(content, dialect, raw string) llm.Message {
	m := llm.Message{Role: llm.Assistant, Content: json.RawMessage(content)}
	if raw != "" {
		m.Raw = llm.Raw{Dialect: dialect, Blocks: json.RawMessage(raw)}
	}
	return m
}

func results(content string) llm.Message {
	return llm.Message{Role: llm.Tool, Content: json.RawMessage(content)}
}

func tools() []llm.ToolDef {
	return []llm.ToolDef{
		{Name: "doc_create", Description: "Creates a document.", Schema: json.RawMessage(`{"type": "object", "properties": {"name": {"type": "string"}}}`)},
		{Provider: "anthropic", Definition: json.RawMessage(`{"type":"web_search_20250305","name":"web_search","max_uses":5}`)},
	}
}

// Conversations returns the requests, new ones on each call.
func Conversations() []Conversation {
	half := 0.5
	return []Conversation{
		{"simple", llm.Request{
			Model: "m", System: []llm.SystemBlock{{Text: "You are S."}, {Text: ""}, {Text: "Today is \"now\"."}},
			Messages: []llm.Message{user(`"hi"`)},
		}},
		{"nothing", llm.Request{Model: "m"}},
		{"settings", llm.Request{
			Model: "m", MaxOutputTokens: 100, Temperature: &half, Tools: tools(), Choice: llm.ToolChoice{Mode: llm.ChoiceTool, Name: "doc_create"},
			Meta:     llm.Meta{User: "u1", Session: "s1"},
			System:   []llm.SystemBlock{{Text: "stable", Cache: true}, {Text: "changes"}},
			Messages: []llm.Message{user(`"hi"`), answer(`[{"type":"text","text":"ho"}]`, "", ""), user(`"again"`)},
			Options: map[string]json.RawMessage{
				"anthropic": json.RawMessage(`{"top_k": 5, "model": "other", "service_tier":"auto"}`),
				"openai":    json.RawMessage(`{"parallel_tool_calls": false, "messages": []}`),
			},
		}},
		{"required_no_cache", llm.Request{
			Model: "m", NoCache: true, Tools: tools()[:1], Choice: llm.ToolChoice{Mode: llm.ChoiceRequired}, System: []llm.SystemBlock{{Text: "s"}},
			Messages: []llm.Message{user(`"hi"`)}, Meta: llm.Meta{Session: "s1"},
		}},
		{"tool_loop", llm.Request{
			Model: "m", Tools: tools(), Reasoning: llm.Reasoning{Budget: 2048}, Temperature: &half, System: []llm.SystemBlock{{Text: "s"}},
			Messages: []llm.Message{user(`"make it"`), answer(thinkingContent, "anthropic", thinkingRaw), results(thinkingResults)},
		}},
		{"tool_loop_steered", llm.Request{
			Model: "m", Reasoning: llm.Reasoning{Effort: "low"}, Messages: []llm.Message{
				user(`"make it"`), answer(thinkingContent, "anthropic", thinkingRaw), results(thinkingResults), user(`[{"type":"text","text":"rather B"}]`),
			},
		}},
		{"other_dialects_loop", llm.Request{
			Model: "m", Reasoning: llm.Reasoning{Budget: 2048}, Messages: []llm.Message{
				user(`"read it"`), answer(chatContent, "openai", chatRaw), results(chatResult),
			},
		}},
		{"openrouter_loop", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"read it"`), answer(chatContent, "openrouter", chatRaw), results(chatResult),
		}}},
		{"compatible_loops", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"read it"`), answer(chatContent, "openai-compatible", chatRaw), results(chatResult), answer(`[{"type":"text","text":"read"}]`, "", ""),
			user(`"again"`), answer(`[{"type":"tool-call","toolCallId":"c2","toolName":"doc_read","input":{}}]`, "openai-compatible",
				`[{"role":"assistant","content":"","reasoning_content":"Mm","tool_calls":[{"id":"c2","type":"function","function":{"name":"doc_read","arguments":"{}"}}]}]`),
			results(`[{"type":"tool-result","toolCallId":"c2","toolName":"doc_read","output":{"type":"error-text","value":"gone"}}]`),
		}}},
		{"same_id_twice", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"a"`), answer(`[{"type":"tool-call","toolCallId":"call_0","toolName":"x.y","input":{}}]`, "", ""),
			results(`[{"type":"tool-result","toolCallId":"call_0","toolName":"x.y","output":{"type":"text","value":"first"}}]`),
			answer(`[{"type":"tool-call","toolCallId":"call_0","toolName":"x.y","input":[1]},{"type":"tool-call","toolCallId":"call_0","toolName":"x.y","input":{}}]`, "", ""),
			results(`[{"type":"tool-result","toolCallId":"call_0","toolName":"x.y","output":{"type":"text","value":"second"}},{"type":"tool-result","toolCallId":"call_0","toolName":"x.y","output":{"type":"text","value":"third"}}]`),
		}}},
		{"orphans", llm.Request{Model: "m", Messages: []llm.Message{
			results(`[{"type":"tool-result","toolCallId":"nobody","toolName":"x","output":{"type":"text","value":"?"}}]`),
			user(`"make it"`), answer(thinkingContent, "anthropic", thinkingRaw),
			results(`[{"type":"tool-result","toolCallId":"toolu_02","toolName":"get_current_datetime","output":{"type":"execution-denied","reason":"not now"}}]`),
			user(`"and?"`), answer(thinkingContent, "", ""), answer(`[{"type":"text","text":"Well."}]`, "", ""), user(`"so"`),
		}}},
		{"raw_disagrees", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"a"`), answer(`[{"type":"text","text":"edited"}]`, "anthropic", thinkingRaw), user(`"b"`), answer(`[{"type":"text","text":"ok"}]`, "anthropic", `{"not":"blocks"}`), user(`"c"`),
		}}},
		{"cancelled", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"write"`), answer(`[{"type":"reasoning","text":"unsigned"},{"type":"text","text":"Half a ","providerOptions":{"signalbox":{"cancelled":true}}}]`, "anthropic", `[{"type":"text","text":"Half a "}]`),
			user(`"stop that"`), answer(`[{"type":"text","text":"","providerOptions":{"signalbox":{"cancelled":true}}}]`, "anthropic", `[]`), user(`"go on"`),
		}}},
		{"pause_turn", llm.Request{Model: "m", Continue: true, Tools: tools(), Messages: []llm.Message{user(`"search"`), answer(pausedTxt, "anthropic", pausedRaw)}}},
		{"pause_turn_text", llm.Request{Model: "m", Continue: true, Messages: []llm.Message{
			user(`"search"`), answer(`[{"type":"text","text":"So far \n"}]`, "anthropic", `[{"type":"text","text":"So far \\\n \t"}]`),
		}}},
		{"pause_turn_went_on", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"search"`), answer(pausedTxt, "anthropic", pausedRaw),
			answer(`[{"type":"text","text":"Found."}]`, "anthropic", `[{"type":"web_search_tool_result","tool_use_id":"srvtoolu_09","content":[]},{"type":"text","text":"Found."}]`), user(`"thanks"`),
		}}},
		{"pause_turn_died", llm.Request{Model: "m", Messages: []llm.Message{user(`"search"`), answer(pausedTxt, "anthropic", pausedRaw), user(`"hello?"`)}}},
		{"web_search", llm.Request{Model: "m", Tools: tools(), Messages: []llm.Message{user(`"news?"`), answer(searchContent, "anthropic", searchRaw), user(`"thanks"`)}}},
		{"server_result_alone", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"a"`), answer(`[{"type":"text","text":"ok"}]`, "anthropic", `[{"type":"web_search_tool_result","tool_use_id":"gone","content":[]},{"type":"text","text":"ok"}]`), user(`"b"`),
		}}},
		{"files", llm.Request{Model: "m", Messages: []llm.Message{
			user(`[{"type":"file","mediaType":"video/mp4","data":"AAAA","filename":"old.mp4"}]`), answer(`[{"type":"text","text":"no"}]`, "", ""),
			user(`[{"type":"text","text":"see"},{"type":"file","mediaType":"image/png","data":"` + png + `","filename":"a.png"},{"type":"file","mediaType":"image/jpeg","data":"https://x.test/y.jpg"},` +
				`{"type":"file","mediaType":"application/pdf","data":"JVBERi0=","filename":"a.pdf"},{"type":"file","mediaType":"text/csv","data":"YSxiCg==","filename":"t.csv"}]`),
		}}},
		{"image_compatible", llm.Request{Model: "m", Messages: []llm.Message{user(`[{"type":"file","mediaType":"image/png","data":"` + png + `"}]`)}}},
		{"rich_result", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"shoot"`), answer(`[{"type":"tool-call","toolCallId":"c1","toolName":"browser_screenshot","input":{}}]`, "", ""),
			results(`[{"type":"tool-result","toolCallId":"c1","toolName":"browser_screenshot","output":{"type":"content","value":[{"type":"text","text":"here"},{"type":"media","data":"` + png + `","mediaType":"image/png"},{"type":"file-data","data":"AAAA","mediaType":"application/zip","filename":"z.zip"}]}}]`),
		}}},
		{"odd_history", llm.Request{Model: "m", Messages: []llm.Message{
			{Role: llm.System, Content: json.RawMessage(`"Summary of what was before."`)},
			answer(`[{"type":"text","text":"I begin."}]`, "", ""), answer(`"And go on as a string."`, "", ""), user(`" \n"`), user(`[{"type":"text","text":" "}]`), user(`"two in a row"`),
			answer(`[{"type":"text","text":"The end? "}]`, "", ""),
		}}},
		{"invalid_call", llm.Request{Model: "m", Messages: []llm.Message{
			user(`"a"`), answer(`[{"type":"tool-call","toolCallId":"t1","toolName":"a","input":{"invalid_json":"{\"n"}}]`, "anthropic", `[{"type":"tool_use","id":"t1","name":"a","input":{"invalid_json":"{\"n"}}]`),
			results(`[{"type":"tool-result","toolCallId":"t1","toolName":"a","output":{"type":"error-text","value":""}}]`),
		}}},
	}
}
