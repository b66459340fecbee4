package oracle

import (
	"encoding/json"
	"fmt"
	"strings"
)

// difference is a stream that the SDK reads in another way: what the answers, or the
// errors, have to say.
type difference struct {
	codec  string
	name   string
	stream string // a fixture's name, or the stream itself
	ours   string
	sdk    string
	beta   bool // only the SDK's beta half differs
}

// differences is the table of the package comment, by rows.
func differences() []difference {
	const truncated = "error: model call: truncated"
	return []difference{
		{codec: "anthropic", name: "nothing", stream: "nothing", ours: truncated, sdk: `{"ID":""`},
		{codec: "anthropic", name: "simulated cut", stream: "cut.anthropic", ours: truncated, sdk: `{"ID":"msg_`},
		{codec: "openai", name: "cut", stream: "no_done_no_finish", ours: truncated, sdk: `"Finish":""`},
		{codec: "openai", name: "done without a finish reason", stream: "done_no_finish", ours: truncated, sdk: `"Finish":""`},
		{codec: "openai", name: "nothing", stream: "nothing", ours: truncated, sdk: `{"ID":""`},
		{codec: "openai", name: "simulated cut", stream: "cut.openai", ours: truncated, sdk: `"Finish":""`},
		{codec: "openai", name: "simulated cut of a router", stream: "cut.openrouter", ours: truncated, sdk: `"Finish":""`},

		{codec: "anthropic", name: "a pair over two deltas", stream: "surrogates", ours: `a😀blone`, sdk: "a\ufffd\ufffdblone"},
		{codec: "openai", name: "a pair over two deltas", stream: "surrogates", ours: `a😀b`, sdk: "a\ufffd\ufffdb"},
		{codec: "anthropic", name: "NUL", stream: claude(textBlock(`"a\u0000b"`)...), ours: "\"Text\":\"a\ufffdb\"", sdk: `"Text":"a\u0000b"`},
		{codec: "anthropic", name: "not UTF-8", stream: "not_utf8", ours: "\"Text\":\"a\ufffdb\"", sdk: `"Text":"a\ufffd\ufffdb"`},
		{codec: "openai", name: "not UTF-8", stream: "not_utf8", ours: "\"Text\":\"a\ufffdb\"", sdk: `"Text":"a\ufffdb"`},

		{codec: "anthropic", name: "arguments that are no object", stream: "tool_bad_args", ours: `"Input":{"invalid_json":"{\"name\": \"A"}`, sdk: `"Name":"a","Input":{}`},
		{codec: "openai", name: "arguments that are no object", stream: "bad_args", ours: `"Input":{"invalid_json":"{\"i\":"}`, sdk: `"Name":"x","Input":"{\"i\":"`},
		{
			codec: "anthropic", name: "an empty input with a blank",
			stream: claude(callBlock(`{ }`, `{\"a\":1}`)...), ours: `"Input":{"a":1}`, sdk: `"Input":{}`,
		},
		{
			codec: "anthropic", name: "an input that is written anew",
			stream: claude(callBlock(`{"a":0}`, `{\"a\":1}`)...), ours: `"Input":{"a":1}`, sdk: `"Input":{}`,
		},
		{codec: "anthropic", name: "calls without an id, or with one twice", stream: "tool_ids", ours: `"ID":"call_e90954f7ca66d5d6"`, sdk: `"ID":"","Name":"a"`},
		{codec: "openai", name: "calls without an id", stream: "no_ids", ours: `"ID":"call_bebf969ffe500247"`, sdk: `"ID":"","Name":"x"`},
		{codec: "openai", name: "calls with the same id", stream: "same_ids", ours: `"ID":"call_bebf959ffe500094","Name":"y"`, sdk: `"ID":"a","Name":"y"`},

		{codec: "anthropic", name: "text in an unknown delta", stream: "unknown", ours: `"Text":"hi"`, sdk: `"Parts":[{"Kind":"server-call"`},
		{
			codec: "anthropic", name: "compaction in pieces", beta: true, ours: `"content":"summary"`, sdk: `"content":"mary"`,
			stream: claude(`{"type":"content_block_start","index":0,"content_block":{"type":"compaction","content":null}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"sum"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"mary"}}`,
				`{"type":"content_block_stop","index":0}`),
		},
		{
			codec: "anthropic", name: "another model takes over", beta: true, ours: `"Model":"m"`, sdk: `"Model":"n"`,
			stream: claude(`{"type":"content_block_start","index":0,"content_block":{"type":"fallback","from":{"model":"m"},"to":{"model":"n"}}}`,
				`{"type":"content_block_stop","index":0}`),
		},
		{
			codec: "anthropic", name: "indexes with a gap", ours: `"Text":"a"`, sdk: "error: received event",
			stream: strings.ReplaceAll(claude(textBlock(`"a"`)...), `"index":0`, `"index":5`),
		},
		{
			codec: "anthropic", name: "a delta behind the stop", ours: "error: model call: server, type malformed_stream", sdk: `"Text":"ab"`,
			stream: claude(append(textBlock(`"a"`), textBlock(`"b"`)[1])...),
		},
		{codec: "anthropic", name: "a second start", stream: "start_twice", ours: "error: model call: server, type malformed_stream", sdk: `{"ID":"msg_01"`},
		{
			codec: "anthropic", name: "a stop reason that is null again", ours: `"Finish":"end_turn"`, sdk: `"Finish":""`,
			stream: strings.Replace(claude(), "event: message_stop", claudeEvents(`{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":2}}`)+"event: message_stop", 1),
		},
		{
			codec: "anthropic", name: "usage without the output", ours: `"outputTokens":1`, sdk: `"outputTokens":0`,
			stream: strings.ReplaceAll(claude(), `"usage":{"output_tokens":2}`, `"usage":{}`),
		},
		{codec: "anthropic", name: "no event lines", stream: noNames(claude(textBlock(`"a"`)...)), ours: `"Text":"a"`, sdk: `{"ID":""`},
		{codec: "anthropic", name: "CR alone", stream: strings.ReplaceAll(claude(), "\n", "\r"), ours: `{"ID":"msg_1"`, sdk: `{"ID":""`},
		{codec: "anthropic", name: "a byte order mark", stream: "\ufeff" + claude(), ours: `{"ID":"msg_1"`, sdk: `{"ID":""`},

		{codec: "openai", name: "all calls numbered 0", stream: "all_index_0", ours: `"ID":"b","Name":"x","Input":{"i":2}`, sdk: `"ID":"b","Name":"xx","Input":"{`},
		{codec: "openai", name: "all calls numbered 0, without ids", stream: "all_index_0_no_ids", ours: `"Name":"x","Input":{"i":2}`, sdk: `"Name":"xx","Input":"{`},
		{codec: "openai", name: "calls without an index", stream: "no_index", ours: `"ID":"b","Name":"y","Input":{"i":2}`, sdk: `"ID":"b","Name":"xy","Input":"{`},
		{codec: "openai", name: "id and name in every chunk", stream: "id_in_every_chunk", ours: `"ID":"a","Name":"x"`, sdk: `"ID":"other","Name":"xx"`},
		{codec: "openai", name: "the name again, spelled otherwise", stream: "name_again", ours: `"Name":"doc_read"`, sdk: `"Name":"doc_readdoc_read"`},
		{
			codec: "openai", name: "calls that begin out of order", ours: `"ID":"b","Name":"y","Input":{}},{"Kind":"call","Text":"","Proof":"","ID":"a"`, sdk: `"ID":"a","Name":"x","Input":{}},{"Kind":"call","Text":"","Proof":"","ID":"b"`,
			stream: gpt(`{"tool_calls":[{"index":1,"id":"b","function":{"name":"y"}}]}`, `{"tool_calls":[{"index":0,"id":"a","function":{"name":"x"}}]}`, `{}`),
		},
		{
			codec: "openai", name: "indexes with a gap", ours: `"Parts":[{"Kind":"call","Text":"","Proof":"","ID":"b"`, sdk: `"Parts":[{"Kind":"call","Text":"","Proof":"","ID":""`,
			stream: gpt(`{"tool_calls":[{"index":1,"id":"b","function":{"name":"y"}}]}`, `{}`),
		},
		{codec: "openai", name: "arguments as an object, no id", stream: "args_as_object", ours: `"ID":"call_256e02fd623698f0"`, sdk: `"ID":""`},
		{codec: "openai", name: "content as parts", stream: "content_parts", ours: `"Kind":"text","Text":"ab"`, sdk: `"Kind":"text","Text":"[{`},
		{codec: "openai", name: "two kinds of reasoning that differ", stream: "reasoning_content", ours: `"Text":"Hm, yes."`, sdk: `"Text":"yes."`},
		{codec: "openai", name: "usage with every chunk", stream: "usage_everywhere", ours: `"outputTokens":3`, sdk: `"outputTokens":6`},
		{codec: "openai", name: "an id that changes", stream: "head_changes", ours: `{"ID":"chatcmpl-`, sdk: "error: the SDK does not take"},
		{codec: "openai", name: "an unknown event", stream: "unknown_event.openai", ours: `Before. After.`, sdk: "error: the SDK does not take"},
		{codec: "openai", name: "an unknown event of a router", stream: "unknown_event.openrouter", ours: `Before. After.`, sdk: "error: the SDK does not take"},
		{codec: "openai", name: "an error without its member", stream: "error_event", ours: "error: model call: overloaded", sdk: `{"ID":`},
		{
			codec: "openai", name: "an error that is null", ours: `"Text":"a"`, sdk: "error: received error while streaming",
			stream: strings.ReplaceAll(gpt(`{"content":"a"}`, `{}`), `{"id"`, `{"error":null,"id"`),
		},
		{
			codec: "openai", name: "a finish reason that is null again", ours: `"Finish":"stop"`, sdk: `"Finish":""`,
			stream: strings.Replace(gpt(`{"content":"a"}`, `{}`), "data: [DONE]", `data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":null}]}`+"\n\ndata: [DONE]", 1),
		},
		{codec: "openai", name: "CR alone", stream: strings.ReplaceAll(gpt(`{"content":"a"}`, `{}`), "\n", "\r"), ours: `"Text":"a"`, sdk: `{"ID":""`},
		{codec: "openai", name: "a byte order mark", stream: "\ufeff" + gpt(`{"content":"a"}`, `{}`), ours: `"Text":"a"`, sdk: `"Parts":null`},
	}
}

// claude makes a stream of the events between the first and the last two.
func claude(events ...string) string {
	all := append([]string{`{"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`}, events...)
	all = append(all, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}`, `{"type":"message_stop"}`)
	return claudeEvents(all...)
}

func claudeEvents(events ...string) string {
	var b strings.Builder
	for _, data := range events {
		var ev struct{ Type string }
		_ = json.Unmarshal([]byte(data), &ev)
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", ev.Type, data)
	}
	return b.String()
}

// noNames takes the names of the events away.
func noNames(stream string) string {
	var b strings.Builder
	for line := range strings.Lines(stream) {
		if !strings.HasPrefix(line, "event:") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// textBlock is a block with the deltas, JSON strings.
func textBlock(deltas ...string) []string {
	events := []string{`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`}
	for _, d := range deltas {
		events = append(events, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+d+`}}`)
	}
	return append(events, `{"type":"content_block_stop","index":0}`)
}

// callBlock is a call that begins with input and goes on with the deltas.
func callBlock(input string, deltas ...string) []string {
	events := []string{`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"n","input":` + input + `}}`}
	for _, d := range deltas {
		events = append(events, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"`+d+`"}}`)
	}
	return append(events, `{"type":"content_block_stop","index":0}`)
}

// gpt makes a stream of chunks with these deltas, the last of which ends it.
func gpt(deltas ...string) string {
	var b strings.Builder
	for i, d := range deltas {
		finish := "null"
		if i == len(deltas)-1 {
			finish = `"stop"`
		}
		fmt.Fprintf(&b, "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", d, finish)
	}
	return b.String() + "data: [DONE]\n\n"
}
