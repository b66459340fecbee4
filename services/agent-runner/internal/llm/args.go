package llm

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// Arguments turns what a model wrote as the arguments of a call into a JSON object on
// one line. Nothing, white space and null are {}. What is no JSON object is invalid:
// the object then quotes it, so that the model sees its own words when it is told.
func Arguments(written []byte) (args json.RawMessage, invalid bool) {
	text := bytes.TrimSpace(written)
	if len(text) == 0 || string(text) == "null" {
		return json.RawMessage("{}"), false
	}
	text = jscan.ValidUTF8(text)
	if text[0] == '{' && jscan.Valid(text) {
		return jscan.AppendCompact(nil, text), false
	}
	args = append(args, `{"invalid_json":`...)
	args = jscan.AppendString(args, text)
	return append(args, '}'), true
}
