package mcp_test

import (
	"encoding/json"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/tool-executor/internal/mcp"
)

// The model sees a tool's schema, and the person who approves it does not see invisible text in it.
func TestSchemaWithoutInvisibleText(t *testing.T) {
	t.Parallel()
	var schema any
	if err := json.Unmarshal([]byte(`{"type":"object","properties":{"a":{"type":"string","description":"Text\u200b\udb40\udc41\udb40\udc42.","enum":["❤️"]}}}`), &schema); err != nil {
		t.Fatal(err)
	}
	const want = `{"properties":{"a":{"description":"Text.","enum":["❤️"],"type":"string"}},"type":"object"}`
	if got := mcp.Define(&sdk.Tool{Name: "x", InputSchema: schema}); string(got.InputSchema) != want || got.Problem != "" {
		t.Errorf("the schema is %+q, want %s; problem %q", got.InputSchema, want, got.Problem)
	}
}
