package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

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

// Member is one person's membership.
type Member struct {
	MemberID  string `json:"member_id" format:"uuid"`
	Role      string `json:"role" enum:"owner,editor,viewer"`
	CreatedAt string `json:"created_at" format:"date-time"`
}

func viewMember(m store.Member) Member {
	return Member{m.ID.String(), m.Role.String(), timeStamp(m.CreatedAt)}
}

// WorkspacePath is the path of one workspace.
type WorkspacePath struct {
	ID string `path:"id" format:"uuid" doc:"The workspace's id."`
}

// MemberPath is the path of one member of a workspace.
type MemberPath struct {
	WorkspacePath
	MemberID string `path:"member_id" format:"uuid"`
}

type memberOutput struct {
	Body struct {
		Member Member `json:"member"`
	}
}

func showMember(m store.Member) *memberOutput {
	out := &memberOutput{}
	out.Body.Member = viewMember(m)
	return out
}

func (a *API) workspaces() {
	tags := []string{"Workspaces"}
	handle(a, huma.Operation{
		OperationID: "list-workspaces", Method: http.MethodGet, Path: "/api/workspaces",
		Tags: tags, Summary: "List the caller's workspaces; with an API key, its own",
	}, access{workspace: fromNowhere}, a.listWorkspaces)
	handle(a, huma.Operation{
		OperationID: "create-workspace", Method: http.MethodPost, Path: "/api/workspaces", DefaultStatus: http.StatusCreated,
		Tags: tags, Summary: "Create a workspace, with the caller as its owner",
	}, access{workspace: fromNowhere, people: true}, a.createWorkspace)
	handle(a, huma.Operation{
		OperationID: "list-members", Method: http.MethodGet, Path: "/api/workspaces/{id}/members",
		Tags: tags, Summary: "List a workspace's members",
	}, access{role: identity.Viewer, workspace: fromPath}, a.listMembers)
	handle(a, huma.Operation{
		OperationID: "add-member", Method: http.MethodPost, Path: "/api/workspaces/{id}/members", DefaultStatus: http.StatusCreated,
		Tags: tags, Summary: "Make a person a member",
	}, access{role: identity.Owner, workspace: fromPath, people: true}, a.addMember)
	handle(a, huma.Operation{
		OperationID: "update-member", Method: http.MethodPatch, Path: "/api/workspaces/{id}/members/{member_id}",
		Tags: tags, Summary: "Change a member's role",
	}, access{role: identity.Owner, workspace: fromPath, people: true}, a.updateMember)
	handle(a, huma.Operation{
		OperationID: "remove-member", Method: http.MethodDelete, Path: "/api/workspaces/{id}/members/{member_id}",
		Tags: tags, Summary: "Remove a member, or leave; the member's API keys end with it",
	}, access{role: identity.Viewer, workspace: fromPath, people: true}, a.removeMember)
}

type workspacesOutput struct {
	Body struct {
		Workspaces []Workspace `json:"workspaces" nullable:"false"`
		NextCursor *string     `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listWorkspaces(ctx context.Context, in *PageInput) (*workspacesOutput, error) {
	page, err := in.page()
	if err != nil {
		return nil, err
	}
	caller := callerOf(ctx)
	key, isKey := caller.Key()
	found, err := a.cfg.Store.Workspaces(ctx, caller.Member, key.Workspace, page)
	if err != nil {
		return nil, err
	}
	if isKey {
		for i := range found {
			found[i].Role = key.Role
		}
	}
	out := &workspacesOutput{}
	found, out.Body.NextCursor = cut(*in, found, func(w store.Workspace) (time.Time, uuid.UUID) { return w.CreatedAt, w.ID.UUID })
	out.Body.Workspaces = make([]Workspace, len(found))
	for i, w := range found {
		out.Body.Workspaces[i] = viewWorkspace(w)
	}
	return out, nil
}

// CreateWorkspace is the body of POST /api/workspaces.
type CreateWorkspace struct {
	Name string `json:"name" minLength:"1" maxLength:"200"`
}

type workspaceOutput struct {
	Body struct {
		Workspace Workspace `json:"workspace"`
	}
}

func (a *API) createWorkspace(ctx context.Context, in *struct {
	Idempotent
	Body CreateWorkspace
},
) (*workspaceOutput, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	name, err := checkName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	caller := callerOf(ctx)
	ws := id.New[id.Workspace]()
	if key != "" {
		ws.UUID = operation(identity.Actor{Member: caller.Member}, "create-workspace", key).UUID
	}
	w, err := a.cfg.Store.CreateWorkspace(ctx, ws, name, caller.Member)
	if err != nil {
		return nil, err
	}
	out := &workspaceOutput{}
	out.Body.Workspace = viewWorkspace(w)
	return out, nil
}

type membersOutput struct {
	Body struct {
		Members    []Member `json:"members" nullable:"false"`
		NextCursor *string  `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listMembers(ctx context.Context, in *struct {
	WorkspacePath
	PageInput
},
) (*membersOutput, error) {
	page, err := in.page()
	if err != nil {
		return nil, err
	}
	found, err := a.cfg.Store.Members(ctx, principalOf(ctx).Actor.Workspace, page)
	if err != nil {
		return nil, err
	}
	out := &membersOutput{}
	found, out.Body.NextCursor = cut(in.PageInput, found, func(m store.Member) (time.Time, uuid.UUID) { return m.CreatedAt, m.ID.UUID })
	out.Body.Members = make([]Member, len(found))
	for i, m := range found {
		out.Body.Members[i] = viewMember(m)
	}
	return out, nil
}

// AddMember is the body of POST /api/workspaces/{id}/members.
type AddMember struct {
	MemberID string `json:"member_id" format:"uuid" doc:"The person's id: the sub of their token."`
	Role     string `json:"role" enum:"owner,editor,viewer"`
}

func (a *API) addMember(ctx context.Context, in *struct {
	WorkspacePath
	Repeatable
	Body AddMember
},
) (*memberOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	member, role, err := memberAndRole(in.Body.MemberID, in.Body.Role)
	if err != nil {
		return nil, err
	}
	m, err := a.cfg.Store.AddMember(ctx, principalOf(ctx).Actor.Workspace, member, role)
	if err != nil {
		return nil, err
	}
	return showMember(m), nil
}

func memberAndRole(member, role string) (id.Member, identity.Role, error) {
	if member == "" {
		return id.Member{}, 0, invalid("member_id is required")
	}
	m, err := parseID[id.Member]("member_id", member)
	if err != nil {
		return id.Member{}, 0, err
	}
	r, err := parseRole(role)
	return m, r, err
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
) (*memberOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	member, role, err := memberAndRole(in.MemberID, in.Body.Role)
	if err != nil {
		return nil, err
	}
	m, err := a.cfg.Store.SetRole(ctx, principalOf(ctx).Actor.Workspace, member, role)
	if err != nil {
		return nil, err
	}
	if role < identity.Editor {
		a.stopRunsOf(ctx, member)
	}
	return showMember(m), nil
}

func (a *API) removeMember(ctx context.Context, in *struct {
	MemberPath
	Repeatable
},
) (*done, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	member, err := parseID[id.Member]("member_id", in.MemberID)
	if err != nil {
		return nil, err
	}
	actor := principalOf(ctx).Actor
	if member != actor.Member {
		if _, err := identity.Require(ctx, identity.Owner); err != nil {
			return nil, err
		}
	}
	if err := a.cfg.Store.RemoveMember(ctx, actor.Workspace, member); err != nil {
		return nil, err
	}
	a.stopRunsOf(ctx, member)
	return succeeded(), nil
}

// stopRunsOf ends what somebody who may no longer write has left running. It is
// done as well as it can be: the membership is gone already.
func (a *API) stopRunsOf(ctx context.Context, member id.Member) {
	if _, err := a.cfg.Conversations.Cancel(ctx, &agentv1.CancelRequest{MemberId: member.String()}); err != nil {
		a.cfg.Log.WarnContext(ctx, "runs of a former member not stopped", "member", member, "error", err)
	}
}
