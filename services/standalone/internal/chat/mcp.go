package chat

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"signalbox.dev/pkg/conf"
)

// McpServer is an MCP server of the workspace.
type McpServer struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	URL         string    `json:"url"`
	Credential  bool      `json:"credential"`
	Operator    bool      `json:"operator"`
	Failure     *string   `json:"failure"`
	NeedsSignIn bool      `json:"needs_sign_in"`
	Tools       []McpTool `json:"tools"`
}

// McpTool is a tool of an MCP server.
type McpTool struct {
	Name              string  `json:"name"`
	Description       string  `json:"description"`
	Changed           bool    `json:"changed"`
	Hash              string  `json:"hash"`
	UnavailableReason *string `json:"unavailable_reason"`
}

// McpServersPath lists the MCP servers.
const McpServersPath = "/api/mcp-servers"

type mcpServerBody struct {
	Server McpServer `json:"mcp_server"`
}

// McpServers returns the workspace's MCP servers.
func (c *Client) McpServers(ctx context.Context) ([]McpServer, error) {
	var out struct {
		Servers []McpServer `json:"mcp_servers"`
	}
	if err := c.call(ctx, http.MethodGet, McpServersPath, nil, &out); err != nil {
		return nil, fmt.Errorf("list the MCP servers: %w", err)
	}
	return out.Servers, nil
}

// McpServer returns the MCP server with a name.
func (c *Client) McpServer(ctx context.Context, name string) (McpServer, error) {
	all, err := c.McpServers(ctx)
	if err != nil {
		return McpServer{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return McpServer{}, fmt.Errorf("there is no MCP server called %q: `mcp list` has them", name)
}

// mcpProvider is the provider of a server's account.
func mcpProvider(name string) string { return "mcp-" + name }

// AddMcpServer adds an MCP server. A secret that is not empty is stored as an account first.
func (c *Client) AddMcpServer(ctx context.Context, name, address string, secret conf.Secret) (McpServer, error) {
	if secret != "" {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			return McpServer{}, fmt.Errorf("%q is not a URL: use https://host/path", address)
		}
		if _, err := c.AddAccount(ctx, map[string]any{"provider": mcpProvider(name), "profile": "mcp", "base_url": u.Scheme + "://" + u.Host}, secret); err != nil {
			return McpServer{}, err
		}
	}
	var out mcpServerBody
	err := c.call(ctx, http.MethodPost, McpServersPath, map[string]any{"name": name, "url": address, "credential": secret != ""}, &out)
	if err != nil {
		return McpServer{}, fmt.Errorf("add the MCP server: %w", err)
	}
	return out.Server, nil
}

// McpSignIn is a sign-in to an MCP server that has begun.
type McpSignIn struct {
	ID        string    `json:"id"`
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// StartMcpSignIn begins to sign in to an MCP server: the browser is sent back to redirect. The
// client is one that was registered by hand; its id and secret may be empty.
func (c *Client) StartMcpSignIn(ctx context.Context, s McpServer, redirect, client string, secret conf.Secret) (McpSignIn, error) {
	in := map[string]string{"redirect": redirect}
	if client != "" {
		in["client_id"] = client
	}
	if secret != "" {
		in["client_secret"] = secret.Reveal()
	}
	var out struct{ Login McpSignIn }
	err := c.call(ctx, http.MethodPost, McpServersPath+"/"+s.ID+"/sign-in", in, &out)
	return out.Login, err
}

// CompleteMcpSignIn ends a sign-in with the parameters of the browser's redirect.
func (c *Client) CompleteMcpSignIn(ctx context.Context, in McpSignIn, answer map[string]string) error {
	return c.call(ctx, http.MethodPost, "/api/accounts/logins/"+in.ID+"/complete", answer, nil)
}

// TestMcpServer asks an MCP server for its tools.
func (c *Client) TestMcpServer(ctx context.Context, s McpServer) (McpServer, error) {
	var out mcpServerBody
	err := c.call(ctx, http.MethodPost, McpServersPath+"/"+s.ID+"/test", nil, &out)
	return out.Server, err
}

// ApproveMcpTools approves definitions of an MCP server's tools.
func (c *Client) ApproveMcpTools(ctx context.Context, s McpServer, hashes []string) (McpServer, error) {
	var out mcpServerBody
	err := c.call(ctx, http.MethodPost, McpServersPath+"/"+s.ID+"/approve", map[string]any{"hashes": hashes}, &out)
	return out.Server, err
}

// RemoveMcpServer removes an MCP server and its accounts.
func (c *Client) RemoveMcpServer(ctx context.Context, s McpServer) error {
	if err := c.call(ctx, http.MethodDelete, McpServersPath+"/"+s.ID, nil, nil); err != nil || !s.Credential {
		return err
	}
	var accounts struct {
		Accounts []struct{ ID, Provider, Origin string }
	}
	if err := c.call(ctx, http.MethodGet, "/api/accounts?limit=100", nil, &accounts); err != nil {
		return fmt.Errorf("list the accounts: %w", err)
	}
	for _, a := range accounts.Accounts {
		if a.Provider == mcpProvider(s.Name) && a.Origin == "workspace" {
			if err := c.call(ctx, http.MethodDelete, "/api/accounts/"+a.ID, nil, nil); err != nil {
				return fmt.Errorf("remove its account %s: %w", a.ID, err)
			}
		}
	}
	return nil
}
