package e2e_test

import "testing"

// TestAGUIClient uses the gateway with the npm package @ag-ui/client.
func TestAGUIClient(t *testing.T) {
	t.Parallel()
	needNode(t)
	p := standalone.up(t).person(t)
	t.Logf("%s", node(t, p.credentials(), "use-ag-ui.mjs", p.url))
}
