package llm

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// Arguments converts what a model wrote as the arguments of a call to a JSON object on one
// line. Empty text, white space and null become {}. Anything else that is not a JSON object
// is invalid; the returned object then quotes it, so that the model sees what it wrote.
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
