package api

import (
	"cmp"
	"context"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/store"
)

// Key is an API key without its secret.
type Key struct {
	ID        string `json:"id" format:"uuid"`
	Name      string `json:"name"`
	Hint      string `json:"hint" doc:"The first characters of the secret." example:"sb_a1B2c3"`
	Role      string `json:"role" enum:"owner,editor,viewer"`
	CreatedBy string `json:"created_by" format:"uuid" doc:"The member that the key acts for. The key ends with their membership."`
	CreatedAt string `json:"created_at" format:"date-time"`
}

func viewKey(k store.Key) Key {
	return Key{k.ID.String(), k.Name, k.Hint, k.Role.String(), k.CreatedBy.String(), timeStamp(k.CreatedAt)}
}

func (a *API) keys() {
	const tag = "API keys"
	who := owners.inPerson()
	handle(a, op("list-keys", "GET /api/keys", tag, "List the workspace's API keys"), who, a.listKeys)
	handle(a, op("create-key", "POST /api/keys", tag, "Create an API key; its secret is shown only once", created,
		about("One Idempotency-Key creates one API key. A repeated call answers 409, because the secret is not shown again. If it was lost, revoke the key and create another with a new Idempotency-Key.")), who, a.createKey)
	handle(a, op("delete-key", "DELETE /api/keys/{id}", tag, "Revoke an API key"), who, a.deleteKey)
}

type keysOutputBody struct {
	Keys       []Key   `json:"keys" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listKeys(ctx context.Context, in *StorePage) (*keysOutputBody, error) {
	found, err := a.cfg.Store.Keys(ctx, principalOf(ctx).Actor.Workspace, in.page())
	found, next := cut(*in, found)
	return &keysOutputBody{each(found, viewKey), next}, err
}

// CreateKey is the body of POST /api/keys.
type CreateKey struct {
	Name string `json:"name" minLength:"1" maxLength:"200"`
	Role string `json:"role,omitempty" enum:"owner,editor,viewer" default:"editor"`
}

type keyOutputBody struct {
	Key    Key    `json:"key"`
	Secret string `json:"secret" doc:"The bearer token to send. It is not shown again." example:"sb_…"`
}

func (a *API) createKey(ctx context.Context, in *struct {
	Key  idempotencyKey `header:"Idempotency-Key" doc:"A repeated call with the same key creates no second API key and answers 409. At most 255 printable ASCII characters."`
	Body CreateKey
},
) (*keyOutputBody, error) {
	name, err := checkName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	role, err := parseRole(cmp.Or(in.Body.Role, identity.Editor.String()))
	if err != nil {
		return nil, err
	}
	actor := principalOf(ctx).Actor
	k := store.Key{ID: id.New[store.KeyID](), Name: name, Role: role, CreatedBy: actor.Member}
	if in.Key.text != "" {
		k.ID.UUID = in.Key.operation(actor, "create-key").UUID
	}
	made, secret, err := a.cfg.Store.CreateKey(ctx, actor.Workspace, k)
	return &keyOutputBody{viewKey(made), secret.Reveal()}, err
}

func (a *API) deleteKey(ctx context.Context, in *struct {
	ID ID[store.KeyID] `path:"id" format:"uuid" doc:"The key's id."`
	Repeatable
},
) (*Success, error) {
	return succeeded(), a.cfg.Store.DeleteKey(ctx, principalOf(ctx).Actor.Workspace, in.ID.value)
}
