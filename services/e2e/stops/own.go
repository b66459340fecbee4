package stops

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// waitAt is the environment variable that makes a process the operator's MCP server. It has the
// URL that the server's tool asks.
const waitAt = "SIGNALBOX_STOPS_WAIT_AT"

// Serve turns this process into the operator's MCP server, if it was started as that, and does
// not return then.
func Serve() {
	url := os.Getenv(waitAt)
	if url == "" {
		return
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "own", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "Waits.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return nil, nil, err
			}
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				err = res.Body.Close()
			}
			return nil, nil, err
		})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil && err != io.EOF { //nolint:errorlint // Run returns it as it is
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ownServer writes the operator's file of MCP servers, with this program, and returns its path.
// The server runs without a sandbox, which could not reach us.
func ownServer(dir, outside string) (path string, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	type object = map[string]any
	b, err := json.Marshal(object{"mcpServers": object{"own": object{
		"command": program, "env": object{waitAt: "http://" + outside + "/wait"}, "sandbox": false,
	}}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "mcp.json")
	return path, os.WriteFile(path, b, 0o600)
}
