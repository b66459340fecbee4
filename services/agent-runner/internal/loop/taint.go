package loop

import (
	"slices"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// taint is what the results in a conversation may have told the model. Text of strangers may
// tell it to send private data away, so once a conversation has both, a person approves each
// call that acts outside.
type taint struct {
	untrusted, private bool
	read               int // messages of the history
}

// both reports whether the model may follow a stranger and knows something private.
func (t *taint) both() bool { return t.untrusted && t.private }

// add reads the messages that were added to a conversation. A tool that the catalogue does not
// have any more may have read anything.
func (t *taint) add(history []run.Message, catalogue []*toolv1.Tool) {
	for _, m := range history[min(t.read, len(history)):] {
		if m.Role != string(llm.Tool) && m.Role != string(llm.Assistant) {
			continue
		}
		parts, err := modelmsg.Parse(m.Content)
		if err != nil {
			t.untrusted, t.private = true, true // it is not known what the model makes of it
			continue
		}
		for i := range parts {
			if parts[i].Type == modelmsg.ToolResult {
				t.addResult(&parts[i], m.Role == string(llm.Assistant), catalogue)
			}
		}
	}
	t.read = len(history)
}

func (t *taint) addResult(p *modelmsg.Part, byProvider bool, catalogue []*toolv1.Tool) {
	if byProvider {
		t.untrusted = true // a search of the web
	}
	i := slices.IndexFunc(catalogue, func(tool *toolv1.Tool) bool { return tool.GetName() == p.ToolName })
	switch {
	case i >= 0:
		t.untrusted = t.untrusted || catalogue[i].GetReadsUntrusted()
		t.private = t.private || catalogue[i].GetReadsPrivate()
	case !p.Output.IsError() && !byProvider: // an error is ours: there is no such tool
		t.untrusted, t.private = true, true
	}
}
