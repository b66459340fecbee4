package loop

import (
	"encoding/json"
	"slices"
	"strings"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// taint is what a conversation may have told the model. Text of strangers may tell it to send
// private data away, so once a conversation has both, a person approves each call that acts
// outside.
//
// Text of strangers is in the results of tools, in the files that people attach, and in the
// definitions of tools that a server has written. Private data is in results and attached
// files. What a person types is neither: the model is to do what it says.
type taint struct {
	untrusted bool
	private   map[string]bool // the sources of the tools that returned it; "" for files
	read      int             // messages of the history
}

// ask reports whether the model may follow a stranger and knows something private that a call
// of the tool could give away. A server may have back what its own tools have returned, if the
// tool does nothing else.
func (t *taint) ask(tool *toolv1.Tool) bool {
	if !t.untrusted || !tool.GetActsOutside() {
		return false
	}
	for source := range t.private {
		if source != tool.GetSource() || tool.GetEffect() != toolv1.Effect_EFFECT_PURE || !added(tool) {
			return true
		}
	}
	return false
}

func (t *taint) addPrivate(source string) {
	if t.private == nil {
		t.private = map[string]bool{}
	}
	t.private[source] = true
}

// addTools adds the tools that the model is offered.
func (t *taint) addTools(offered []*toolv1.Tool) {
	t.untrusted = t.untrusted || slices.ContainsFunc(offered, added)
}

// added reports whether a workspace has added the tool with a server, which wrote its
// definition.
func added(tool *toolv1.Tool) bool { return strings.HasPrefix(tool.GetName(), "mcp__") }

// add reads the messages that were added to a conversation. A tool that the catalogue does not
// have any more may have read anything.
func (t *taint) add(history []run.Message, catalogue []*toolv1.Tool) {
	for _, m := range history[min(t.read, len(history)):] {
		t.addMessage(m.Role, m.Content, catalogue)
	}
	t.read = len(history)
}

func (t *taint) addMessage(role string, content json.RawMessage, catalogue []*toolv1.Tool) {
	parts, err := modelmsg.Parse(content)
	if err != nil {
		t.addAnything() // it is not known what the model makes of it
		return
	}
	for i := range parts {
		switch p := &parts[i]; {
		case p.Type == modelmsg.ToolResult:
			t.addResult(p, role == string(llm.Assistant), catalogue)
		case p.Type == modelmsg.Text && role == string(llm.Assistant):
			t.untrusted = t.untrusted || cites(p.ProviderOptions)
		case p.Type != modelmsg.Text && role == string(llm.User):
			t.addAnything()
		}
	}
}

// cites reports whether a text has citations. Some models search the web without being given a tool,
// and nothing else tells of it.
func cites(options json.RawMessage) bool {
	return jscan.Member(jscan.Member(options, "openai"), "annotations") != nil || jscan.Member(jscan.Member(options, "anthropic"), "citations") != nil
}

func (t *taint) addResult(p *modelmsg.Part, byProvider bool, catalogue []*toolv1.Tool) {
	if byProvider {
		t.untrusted = true // a search of the web
	}
	i := slices.IndexFunc(catalogue, func(tool *toolv1.Tool) bool { return tool.GetName() == p.ToolName })
	switch {
	case i >= 0:
		t.untrusted = t.untrusted || catalogue[i].GetReadsUntrusted()
		if catalogue[i].GetReadsPrivate() {
			t.addPrivate(catalogue[i].GetSource())
		}
	case byProvider:
	case !p.Output.IsError() || strings.HasPrefix(p.ToolName, "mcp__") || clienttool.IsError(p.Output.Value):
		t.addAnything() // another error is ours: there is no such tool
	}
}

func (t *taint) addAnything() {
	t.untrusted = true
	t.addPrivate("")
}
