package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/id"
)

// The operator gives secrets to a server in its environment, and nothing keeps the server from
// repeating them. The log is without anything of the environment. Members and models see the
// server's answers without the values that are secrets by the names of their variables: other
// values, such as "production", are in ordinary texts too.

const (
	redacted  = "[redacted]"
	minSecret = 8 // bytes; shorter ones are in every text
)

// secretName matches the names of variables whose values are secrets.
var secretName = regexp.MustCompile(`(?i)key|token|secret|pass|pwd|auth|cred|private|cookie|session|dsn|cert`)

// secrets returns the values of the environment, or only those that are secrets, each whole and
// by lines, for each of them may be repeated alone.
func (c *Command) secrets(ws id.Workspace, all bool) (values []string) {
	for name, value := range c.Env {
		value = expand(value, ws)
		password := ""
		if u, err := url.Parse(value); err == nil {
			password, _ = u.User.Password()
		}
		if !all && !secretName.MatchString(name) {
			if value = password; value == "" {
				continue
			}
		}
		values = append(values, value)
		for line := range strings.Lines(strings.ReplaceAll(value, `\n`, "\n")) {
			values = append(values, strings.TrimSpace(line))
		}
	}
	return values
}

// hide returns a function that replaces secrets in a text; nil if there are none.
func hide(secrets []string) func(string) string {
	var pairs []string
	// The longest comes first: another may be a part of it.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, s := range secrets {
		if len(s) >= minSecret {
			pairs = append(pairs, s, redacted)
		}
	}
	if pairs == nil {
		return nil
	}
	return strings.NewReplacer(pairs...).Replace
}

// redacting is a transport whose messages from the server are without secrets.
type redacting struct {
	mcp.Transport

	hide func(string) string
}

// Connect implements mcp.Transport.
func (t redacting) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return redactingConnection{c, t.hide}, nil
}

type redactingConnection struct {
	mcp.Connection

	hide func(string) string
}

// Read implements mcp.Connection.
func (c redactingConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case *jsonrpc.Request:
		m.Params, err = c.redact(m.Params)
	case *jsonrpc.Response:
		m.Result, err = c.redact(m.Result)
		if refusal, ok := errors.AsType[*jsonrpc.Error](m.Error); ok && err == nil {
			refusal.Message = c.hide(refusal.Message)
			refusal.Data, err = c.redact(refusal.Data)
		}
	}
	return m, err
}

// redact returns JSON with the secrets in its strings replaced.
func (c redactingConnection) redact(text json.RawMessage) (json.RawMessage, error) {
	if len(text) == 0 {
		return text, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return json.Marshal(c.walk(v))
}

func (c redactingConnection) walk(v any) any {
	switch v := v.(type) {
	case string:
		return c.hide(v)
	case []any:
		for i := range v {
			v[i] = c.walk(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, e := range v {
			out[c.hide(key)] = c.walk(e)
		}
		return out
	}
	return v
}
