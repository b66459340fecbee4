package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/visible"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// anyObject is the input schema of tools whose own cannot be used.
const anyObject = `{"type":"object"}`

// serverTool is a tool of a server.
type serverTool struct {
	client    *client
	server    Server
	name      string // the server's own
	kind      string
	spec      tool.Spec
	available tool.Availability
}

// approved reports whether a definition was approved, or is ours.
func (s Server) approved(d Definition) bool {
	return d.Kind != "" || slices.Contains(s.Approved, d.Hash())
}

// wantsHeaders reports whether a tool wants arguments in headers too. The SDK sends them only for
// tools that it has listed in the same session.
func (s Server) wantsHeaders(name string) bool {
	return slices.ContainsFunc(s.Tools, func(d Definition) bool {
		return d.Name == name && bytes.Contains(d.InputSchema, []byte(`"x-mcp-header"`))
	})
}

// available says whether a tool can be used.
func (s Server) available(d Definition) tool.Availability {
	switch {
	case d.Problem != "":
		return tool.Availability{Reason: d.Problem}
	case !s.approved(d):
		return tool.Availability{
			Reason: "the MCP server " + s.Name + " has changed this tool's definition since it was approved: an editor looks at it and approves it again",
			Cause:  &tool.Cause{Code: tool.DefinitionChanged, Server: s.Name},
		}
	case s.Failure != "":
		cause := &tool.Cause{Code: tool.ServerUnavailable, Server: s.Name, Reason: s.Failure}
		if s.SignIn == SignInRequired {
			cause.Code = tool.NeedsSignIn
		}
		return tool.Availability{Reason: "the MCP server " + s.Name + " cannot be used: " + s.Failure, Cause: cause}
	}
	return tool.Availability{Available: true}
}

// entries returns a server's tools for the catalogue. A definition that cannot be used is
// listed without its schema.
func (s Server) entries(c *client, guard *netguard.Guard) []tool.Entry {
	private := s.readsPrivate(guard)
	var all []tool.Entry
	taken := map[string]bool{}
	for _, d := range s.Tools {
		name := toolName(s.Name, d.Name)
		if taken[name] {
			continue // a name that is listed twice means the first one
		}
		taken[name] = true
		available := s.available(d)
		e, err := s.entry(c, name, d, private, available)
		if err != nil {
			d.InputSchema = nil
			if available.Available {
				available = tool.Availability{Reason: "its input schema is not valid: " + clip(visible.Text(err.Error()), maxSaid)}
			}
			e, err = s.entry(c, name, d, private, available)
		}
		if err == nil {
			all = append(all, e)
		}
	}
	return all
}

// readsPrivate reports whether a server may know what a stranger cannot: it has an account, is the
// operator's or in a private network, or has a secret in its URL.
func (s Server) readsPrivate(guard *netguard.Guard) bool {
	u, err := url.Parse(s.URL)
	return s.Credential || s.Operator || err != nil || guard.MayBePrivate(u) || mayHaveSecret(u)
}

// minKey is the length from which a part of a path may be a secret.
const minKey = 16

func mayHaveSecret(u *url.URL) bool {
	return u.User != nil || u.RawQuery != "" || slices.ContainsFunc(strings.Split(u.Path, "/"), func(part string) bool { return len(part) >= minKey })
}

func (s Server) entry(c *client, name string, d Definition, private bool, available tool.Availability) (tool.Entry, error) {
	effect := toolv1.Effect_EFFECT_UNSAFE
	switch {
	case d.ReadOnly:
		effect = toolv1.Effect_EFFECT_PURE
	case d.Idempotent:
		effect = toolv1.Effect_EFFECT_KEYED // a second run has no further effect
	}
	t := &serverTool{
		client: c, server: s, name: d.Name, kind: d.Kind, available: available,
		spec: tool.Spec{
			Name: name, Description: cmp.Or(clip(visible.Text(d.Description), maxDescription), "A tool of the MCP server "+s.Name+"."), InputSchema: d.InputSchema, Source: s.Name,
			Effect: effect, Deadline: callTimeout, Longest: longestCall, Less: "ask for less, if the tool's arguments allow that",
			NeedsApproval: !d.ReadOnly, ReadsUntrusted: true, ReadsPrivate: private, MayReturnImage: true, DropNulls: true,
			ActsOutside: true, // the server gets the arguments, and only says that it reads
		},
	}
	var checks json.RawMessage
	switch {
	case d.InputSchema == nil:
		t.spec.InputSchema = json.RawMessage(anyObject)
	case isComplex(d.InputSchema):
		checks = json.RawMessage(anyObject) // the server checks them
	}
	if !available.Available { // an unapproved text does not go into the model's context
		t.spec.Description = "A tool of the MCP server " + s.Name + "."
		t.spec.InputSchema = json.RawMessage(anyObject)
	}
	return tool.NewEntry(t, checks)
}

// Spec implements tool.Tool.
func (t *serverTool) Spec() tool.Spec { return t.spec }

// Available implements tool.Tool.
func (t *serverTool) Available(context.Context) tool.Availability { return t.available }

// Run implements tool.Tool.
func (t *serverTool) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	run := func() (tool.Result, error) { return t.client.call(ctx, t.server, t.name, c.Args, c.Report) }
	if t.kind != "" {
		run = func() (tool.Result, error) { return t.client.use(ctx, t.server, t.kind, c.Args) }
	}
	result, err := run()
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		return tool.Result{}, context.Cause(ctx)
	}
	if t.client.unauthorized != nil {
		if refused, ok := t.client.unauthorized(ctx, t.server, err); ok {
			return refused, nil
		}
	}
	switch {
	case errors.Is(err, errSent) && t.spec.Effect != toolv1.Effect_EFFECT_PURE:
		return tool.Result{}, fault.Wrap(withoutPaths(err), fault.Unavailable, "the MCP server "+t.server.Name+" broke off: "+why(err))
	}
	return tool.Errorf("unavailable", "the MCP server %s cannot be used: %s; do without it", t.server.Name, why(err)).
		WithCause(&tool.Cause{Code: tool.ServerUnavailable, Server: t.server.Name, Reason: why(err)}), nil
}

// Listed is a tool of a server for people.
type Listed struct {
	Name        string // in the catalogue
	Definition  Definition
	Changed     bool   // the definition is not approved
	Unavailable string // why the tool cannot be used; empty if it can
}

// Listed returns a server's tools for people, with their texts, approved or not.
func (s Server) Listed() []Listed {
	var all []Listed
	for _, d := range s.Tools {
		d.Description = clip(visible.Text(d.Description), maxDescription)
		all = append(all, Listed{toolName(s.Name, d.Name), d, !s.approved(d), s.available(d).Reason})
	}
	return all
}
