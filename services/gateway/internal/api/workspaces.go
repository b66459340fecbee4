package api

import (
	"context"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// Workspace is a tenant as the caller sees it.
type Workspace struct {
	ID        string `json:"id" format:"uuid"`
	Name      string `json:"name"`
	Role      string `json:"role" enum:"owner,editor,viewer" doc:"The caller's role."`
	CreatedAt string `json:"created_at" format:"date-time"`
}

func viewWorkspace(w store.Workspace) Workspace {
	return Workspace{w.ID.String(), w.Name, w.Role.String(), timeStamp(w.CreatedAt)}
}

// Member is a person's membership.
type Member struct {
	MemberID  string `json:"member_id" format:"uuid"`
	Name      string `json:"name,omitempty" doc:"As the company's sign-in page has it, or the access token with which the person last signed in with a browser."`
	Email     string `json:"email,omitempty"`
	Role      string `json:"role" enum:"owner,editor,viewer"`
	CreatedAt string `json:"created_at" format:"date-time"`
}

func viewMember(m store.Member) Member {
	return Member{m.ID.String(), m.Name, m.Email, m.Role.String(), timeStamp(m.CreatedAt)}
}

// WorkspacePath is the path of one workspace.
type WorkspacePath struct {
	ID ID[id.Workspace] `path:"id" format:"uuid" doc:"The workspace's id."`
}

// MemberPath is the path of one member of a workspace.
type MemberPath struct {
	WorkspacePath
	MemberID ID[id.Member] `path:"member_id" format:"uuid"`
}

type memberOutputBody struct {
	Member Member `json:"member"`
}

func memberBody(m store.Member) memberOutputBody { return memberOutputBody{viewMember(m)} }

func (a *API) workspaces() {
	const tag = "Workspaces"
	inPath := func(role identity.Role) access { return access{role: role, workspace: fromPath} }
	handle(a, op("list-workspaces", "GET /api/workspaces", tag, "List the caller's workspaces; with an API key, the key's workspace"),
		access{workspace: fromNowhere}, a.listWorkspaces)
	handle(a, op("create-workspace", "POST /api/workspaces", tag, "Create a workspace with the caller as its owner", created),
		access{workspace: fromNowhere, people: true}, a.createWorkspace)
	handle(a, op("list-members", "GET /api/workspaces/{id}/members", tag, "List a workspace's members"), inPath(identity.Viewer), a.listMembers)
	handle(a, op("add-member", "POST /api/workspaces/{id}/members", tag, "Make a person a member", created),
		inPath(identity.Owner).inPerson(), a.addMember)
	handle(a, op("update-member", "PATCH /api/workspaces/{id}/members/{member_id}", tag, "Change a member's role"),
		inPath(identity.Owner).inPerson(), a.updateMember)
	handle(a, op("remove-member", "DELETE /api/workspaces/{id}/members/{member_id}", tag, "Remove a member, or leave; the member's API keys are revoked"),
		inPath(identity.Viewer).inPerson(), a.removeMember)
}

type workspacesOutputBody struct {
	Workspaces []Workspace `json:"workspaces" nullable:"false"`
	NextCursor *string     `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listWorkspaces(ctx context.Context, in *StorePage) (*workspacesOutputBody, error) {
	caller := callerOf(ctx)
	key, isKey := caller.Key()
	found, err := a.cfg.Store.Workspaces(ctx, caller.Member, key.Workspace, in.page())
	if isKey {
		for i := range found {
			found[i].Role = key.Role
		}
	}
	found, next := cut(*in, found)
	return &workspacesOutputBody{each(found, viewWorkspace), next}, err
}

// CreateWorkspace is the body of POST /api/workspaces.
type CreateWorkspace struct {
	Name string `json:"name" minLength:"1" maxLength:"200"`
}

type workspaceOutputBody struct {
	Workspace Workspace `json:"workspace"`
}

func (a *API) createWorkspace(ctx context.Context, in *struct {
	Idempotent
	Body CreateWorkspace
},
) (*workspaceOutputBody, error) {
	name, err := checkName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	caller := callerOf(ctx)
	ws := id.New[id.Workspace]()
	if in.Key.text != "" {
		ws.UUID = in.Key.operation(identity.Actor{Member: caller.Member}, "create-workspace").UUID
	}
	w, err := a.cfg.Store.CreateWorkspace(ctx, ws, name, caller.Member)
	return &workspaceOutputBody{viewWorkspace(w)}, err
}

type membersOutputBody struct {
	Members    []Member `json:"members" nullable:"false"`
	NextCursor *string  `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listMembers(ctx context.Context, in *struct {
	WorkspacePath
	StorePage
},
) (*membersOutputBody, error) {
	found, err := a.cfg.Store.Members(ctx, principalOf(ctx).Actor.Workspace, in.page())
	found, next := cut(in.StorePage, found)
	return &membersOutputBody{each(found, viewMember), next}, err
}

// AddMember is the body of POST /api/workspaces/{id}/members.
type AddMember struct {
	MemberID string `json:"member_id" format:"uuid" doc:"The person's id: the sub claim of their token."`
	Role     string `json:"role" enum:"owner,editor,viewer"`
}

func (a *API) addMember(ctx context.Context, in *struct {
	WorkspacePath
	Repeatable
	Body AddMember
},
) (*memberOutputBody, error) {
	if in.Body.MemberID == "" {
		return nil, invalid("member_id is required")
	}
	member, err := parseID[id.Member]("member_id", in.Body.MemberID)
	if err != nil {
		return nil, err
	}
	role, err := parseRole(in.Body.Role)
	if err != nil {
		return nil, err
	}
	m, err := a.cfg.Store.AddMember(ctx, principalOf(ctx).Actor.Workspace, member, role)
	return answer(m, err, memberBody)
}

func parseRole(s string) (identity.Role, error) {
	if s == "" {
		return 0, invalid("role is required: owner, editor or viewer")
	}
	r, err := identity.ParseRole(s)
	if err != nil {
		return 0, invalid("role: %s", err)
	}
	return r, nil
}

// UpdateMember is the body of PATCH /api/workspaces/{id}/members/{member_id}.
type UpdateMember struct {
	Role string `json:"role" enum:"owner,editor,viewer"`
}

func (a *API) updateMember(ctx context.Context, in *struct {
	MemberPath
	Repeatable
	Body UpdateMember
},
) (*memberOutputBody, error) {
	role, err := parseRole(in.Body.Role)
	if err != nil {
		return nil, err
	}
	m, err := a.cfg.Store.SetRole(ctx, principalOf(ctx).Actor.Workspace, in.MemberID.value, role)
	if err == nil && role < identity.Editor {
		a.stopRunsOf(ctx, in.MemberID.value)
	}
	return answer(m, err, memberBody)
}

func (a *API) removeMember(ctx context.Context, in *struct {
	MemberPath
	Repeatable
},
) (*Success, error) {
	actor := principalOf(ctx).Actor
	if in.MemberID.value != actor.Member {
		if _, err := identity.Require(ctx, identity.Owner); err != nil {
			return nil, err
		}
	}
	if err := a.cfg.Store.RemoveMember(ctx, actor.Workspace, in.MemberID.value); err != nil {
		return nil, err
	}
	a.stopRunsOf(ctx, in.MemberID.value)
	return succeeded(), nil
}

// stopRunsOf cancels the runs of a member who may no longer write. A failure is only
// logged: the membership has already changed.
func (a *API) stopRunsOf(ctx context.Context, member id.Member) {
	if _, err := a.cfg.Conversations.Cancel(ctx, &agentv1.CancelRequest{MemberId: member.String()}); err != nil {
		a.cfg.Log.WarnContext(ctx, "runs of a former member not stopped", "member", member, "error", err)
	}
}
