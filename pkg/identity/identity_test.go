package identity_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
)

func TestParseRole(t *testing.T) {
	t.Parallel()
	for _, want := range []identity.Role{identity.Viewer, identity.Editor, identity.Owner} {
		got, err := identity.ParseRole(want.String())
		if err != nil || got != want {
			t.Errorf("ParseRole(%q) = %v, %v, want %v", want, got, err, want)
		}
	}
	for _, in := range []string{"", "Owner", "admin", "viewer "} {
		if got, err := identity.ParseRole(in); err == nil || got != identity.NoRole {
			t.Errorf("ParseRole(%q) = %v, %v, want an error", in, got, err)
		}
	}
}

func TestRequire(t *testing.T) {
	t.Parallel()
	actor := func(r identity.Role) identity.Actor {
		return identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: r}
	}
	tests := []struct {
		name  string
		actor *identity.Actor
		least identity.Role
		want  fault.Kind
		ok    bool
	}{
		{name: "nobody", least: identity.Viewer, want: fault.Unauthenticated},
		{name: "no workspace", actor: &identity.Actor{Role: identity.Owner}, least: identity.Viewer, want: fault.Unauthenticated},
		{name: "no role", actor: new(actor(identity.NoRole)), least: identity.Viewer, want: fault.Forbidden},
		{name: "a viewer writes", actor: new(actor(identity.Viewer)), least: identity.Editor, want: fault.Forbidden},
		{name: "an editor administers", actor: new(actor(identity.Editor)), least: identity.Owner, want: fault.Forbidden},
		{name: "an editor writes", actor: new(actor(identity.Editor)), least: identity.Editor, ok: true},
		{name: "an owner writes", actor: new(actor(identity.Owner)), least: identity.Editor, ok: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if tt.actor != nil {
				ctx = identity.With(ctx, *tt.actor)
			}
			got, err := identity.Require(ctx, tt.least)
			if tt.ok {
				if err != nil {
					t.Fatalf("Require(%v) = %v, want the actor", tt.least, err)
				}
				if d := cmp.Diff(*tt.actor, got); d != "" {
					t.Errorf("Require(%v) (-want +got):\n%s", tt.least, d)
				}
				return
			}
			if err == nil || fault.KindOf(err) != tt.want || got != (identity.Actor{}) {
				t.Errorf("Require(%v) = %v, %v, want a fault of kind %v and no actor", tt.least, got, err, tt.want)
			}
		})
	}
}

func TestFromKeepsTheInnermost(t *testing.T) {
	t.Parallel()
	if a, ok := identity.From(context.Background()); ok {
		t.Errorf("From(an empty context) = %v, want none", a)
	}
	outer := identity.With(t.Context(), identity.Actor{Role: identity.Owner})
	inner := identity.With(outer, identity.Actor{Role: identity.Viewer})
	if a, ok := identity.From(inner); !ok || a.Role != identity.Viewer {
		t.Errorf("From = %v, %v, want the viewer", a, ok)
	}
}
