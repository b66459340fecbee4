package conversation

import (
	"context"
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/provider"
)

// choose returns the provider and the model that a session, or a message in it, gets when a
// request names a provider, a model, or both. A nil field keeps the session's value if the
// two go together; an empty string asks for the default.
func (s *Store) choose(ctx context.Context, a identity.Actor, session id.Session, askedProvider, askedModel *string) (providerName, model string, err error) {
	now, err := s.Get(ctx, a, session)
	if err != nil {
		return "", "", err
	}
	wish := provider.Request{Prefer: now.Provider}
	switch {
	case askedProvider == nil:
		wish.Model = *askedModel
	case askedModel == nil && *askedProvider == now.Provider:
		return now.Provider, now.Model, nil
	case askedModel == nil:
		wish.Provider = *askedProvider
	default:
		wish.Provider, wish.Model = *askedProvider, *askedModel
	}
	return s.cfg.Models.Choose(ctx, wish)
}

// checkTools refuses names, and prefixes with *, of tools that the workspace does not have, also
// of tools that are left out.
func (s *Store) checkTools(ctx context.Context, asked []string) error {
	if len(asked) == 0 {
		return nil
	}
	available, err := s.cfg.Tools(ctx, false)
	unknown := func(asked string) bool {
		asked, _ = preset.Excluded(asked)
		return !slices.ContainsFunc(available, func(name string) bool { return preset.Match(asked, name) })
	}
	if err == nil && slices.ContainsFunc(asked, unknown) {
		available, err = s.cfg.Tools(ctx, true) // the tool may be newer than the cache
	}
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(asked, unknown); i >= 0 {
		slices.Sort(available)
		return fault.Coded(fault.Invalid, "UNKNOWN_TOOL", "tools[%d]: there is no tool %q: use %s", i, asked[i], strings.Join(available, ", "))
	}
	return nil
}

// clientTools returns the tools of a request, or nil if it has none, and refuses names that
// other tools of the workspace have.
func (s *Store) clientTools(ctx context.Context, in *agentv1.ClientTools) ([]clienttool.Tool, error) {
	tools, err := clienttool.Declared(in)
	if err != nil || len(tools) == 0 {
		return tools, err
	}
	taken, err := s.cfg.Tools(ctx, false)
	if err != nil {
		return nil, err
	}
	for i := range tools {
		if slices.Contains(taken, tools[i].Name) {
			return nil, fault.Coded(fault.Invalid, "TOOL_NAME_TAKEN", "client_tools[%d].name: the workspace has a tool %q already: use another name", i, tools[i].Name)
		}
	}
	return tools, nil
}
