package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestUseChat uses the gateway with useChat of each major version of the AI SDK in React, and cuts
// the answer after every chunk.
func TestUseChat(t *testing.T) {
	t.Parallel()
	needNode(t)
	for _, version := range []string{"5", "6", "7"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := standalone.up(t).person(t)
			t.Logf("%s", node(t, p.credentials(), "use-chat.mjs", version, p.url))
		})
	}
}

// credentials returns a line of JSON for the programs that use useChat.
func (p *person) credentials() []byte {
	p.t.Helper()
	b, err := json.Marshal(map[string]string{"token": p.Token, "workspace": p.Workspace})
	if err != nil {
		p.t.Fatal(err)
	}
	return append(b, '\n')
}

// TestUseChatExample types a message into the component of docs/api.md.
func TestUseChatExample(t *testing.T) {
	t.Parallel()
	needNode(t)
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/api.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := standalone.up(t).person(t)
	out := node(t, append(p.credentials(), page...), "use-chat-example.mjs", p.url)
	if want := regexp.MustCompile(`^what time is it\?\nIt is .* \(UTC offset \+00:00\)\.`); !want.Match(out) {
		t.Errorf("the page shows %q, want the question and the answer", out)
	}
}
