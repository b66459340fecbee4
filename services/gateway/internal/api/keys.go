package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/store"
)

// Key is an API key without its secret.
type Key struct {
	ID        string `json:"id" format:"uuid"`
	Name      string `json:"name"`
	Hint      string `json:"hint" doc:"How the secret begins." example:"sb_a1B2c3"`
	Role      string `json:"role" enum:"owner,editor,viewer"`
	CreatedBy string `json:"created_by" format:"uuid" doc:"The member for whom the key acts; it ends with their membership."`
	CreatedAt string `json:"created_at" format:"date-time"`
}

func viewKey(k store.Key) Key {
	return Key{k.ID.String(), k.Name, k.Hint, k.Role.String(), k.CreatedBy.String(), timeStamp(k.CreatedAt)}
}

func (a *API) keys() {
	tags := []string{"API keys"}
	handle(a, huma.Operation{
		OperationID: "list-keys", Method: http.MethodGet, Path: "/api/keys",
		Tags: tags, Summary: "List the workspace's API keys",
	}, access{role: identity.Owner, people: true}, a.listKeys)
	handle(a, huma.Operation{
		OperationID: "create-key", Method: http.MethodPost, Path: "/api/keys", DefaultStatus: http.StatusCreated,
		Tags: tags, Summary: "Create an API key; its secret is shown this once",
		Description: "An Idempotency-Key makes one API key: a repetition answers 409, for the secret is not shown again. Whoever missed it revokes the key and makes another, with another Idempotency-Key.",
	}, access{role: identity.Owner, people: true}, a.createKey)
	handle(a, huma.Operation{
		OperationID: "delete-key", Method: http.MethodDelete, Path: "/api/keys/{id}",
		Tags: tags, Summary: "Revoke an API key",
	}, access{role: identity.Owner, people: true}, a.deleteKey)
}

type keysOutput struct {
	Body struct {
		Keys       []Key   `json:"keys" nullable:"false"`
		NextCursor *string `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listKeys(ctx context.Context, in *PageInput) (*keysOutput, error) {
	page, err := in.page()
	if err != nil {
		return nil, err
	}
	found, err := a.cfg.Store.Keys(ctx, principalOf(ctx).Actor.Workspace, page)
	if err != nil {
		return nil, err
	}
	out := &keysOutput{}
	found, out.Body.NextCursor = cut(*in, found, func(k store.Key) (time.Time, uuid.UUID) { return k.CreatedAt, k.ID.UUID })
	out.Body.Keys = make([]Key, len(found))
	for i, k := range found {
		out.Body.Keys[i] = viewKey(k)
	}
	return out, nil
}

// CreateKey is the body of POST /api/keys.
type CreateKey struct {
	Name string `json:"name" minLength:"1" maxLength:"200"`
	Role string `json:"role,omitempty" enum:"owner,editor,viewer" default:"editor"`
}

type keyOutput struct {
	Body struct {
		Key    Key    `json:"key"`
		Secret string `json:"secret" doc:"What to send as the bearer token. It is not shown again." example:"sb_…"`
	}
}

func (a *API) createKey(ctx context.Context, in *struct {
	Key  string `header:"Idempotency-Key" doc:"One API key is made for it: a repetition answers 409. 255 printable characters at most."`
	Body CreateKey
},
) (*keyOutput, error) {
	key, err := checkKey("Idempotency-Key", in.Key)
	if err != nil {
		return nil, err
	}
	name, err := checkName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	role := identity.Editor
	if in.Body.Role != "" {
		if role, err = parseRole(in.Body.Role); err != nil {
			return nil, err
		}
	}
	actor := principalOf(ctx).Actor
	k := store.Key{ID: id.New[store.KeyID](), Name: name, Role: role, CreatedBy: actor.Member}
	if key != "" {
		k.ID.UUID = operation(actor, "create-key", key).UUID
	}
	made, secret, err := a.cfg.Store.CreateKey(ctx, actor.Workspace, k)
	if err != nil {
		return nil, err
	}
	out := &keyOutput{}
	out.Body.Key, out.Body.Secret = viewKey(made), secret.Reveal()
	return out, nil
}

func (a *API) deleteKey(ctx context.Context, in *struct {
	ID string `path:"id" format:"uuid" doc:"The key's id."`
	Repeatable
},
) (*done, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	key, err := parseID[store.KeyID]("id", in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Store.DeleteKey(ctx, principalOf(ctx).Actor.Workspace, key); err != nil {
		return nil, err
	}
	return succeeded(), nil
}
