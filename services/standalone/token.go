package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/gateway"
	"signalbox.dev/services/standalone/internal/datadir"
)

// TokenLifetime is how long a development token is valid.
const (
	TokenLifetime = 30 * 24 * time.Hour
	lifetimeText  = "30 days"
)

// Token is a development token.
type Token struct {
	Token     string       `json:"token"`
	Workspace id.Workspace `json:"workspace_id"`
	Member    id.Member    `json:"member_id"`
	ExpiresAt string       `json:"expires_at"`
	// Link signs the member in with a browser, once and within a day.
	Link string `json:"link,omitempty"`
}

// linkLifetime is how long a link can be used.
const linkLifetime = 24 * time.Hour

// TokenOptions say whom a token is for. Zero ids stand for the data folder's own workspace
// and member.
type TokenOptions struct {
	Data      string
	Workspace id.Workspace
	Member    id.Member
	Role      identity.Role
	// DatabaseURL and Secret name a deployment with a development issuer, instead of
	// a data folder.
	DatabaseURL, Secret conf.Secret
	// Console is the console's address, such as http://127.0.0.1:8080, if a link to sign in
	// there is wanted.
	Console string
	Log     *slog.Logger
}

// NewToken makes the member if necessary, and returns a development token. It works
// whether the data folder's Signalbox is running or not.
func NewToken(ctx context.Context, o TokenOptions) (Token, error) {
	if o.DatabaseURL != "" && o.Secret != "" {
		if id.IsZero(o.Workspace) {
			o.Workspace = id.New[id.Workspace]()
		}
		if id.IsZero(o.Member) {
			o.Member = id.New[id.Member]()
		}
		return o.issue(ctx, o.DatabaseURL)
	}
	dir, err := datadir.Open(o.Data)
	if err != nil {
		return Token{}, err
	}
	who, err := dir.Identity()
	if err != nil {
		return Token{}, err
	}
	o.Secret = conf.Secret(who.Secret)
	if id.IsZero(o.Workspace) {
		o.Workspace = who.Workspace
	}
	if id.IsZero(o.Member) {
		o.Member = who.Member
	}
	var token Token
	err = WithDatabase(ctx, dir.Path(), o.DatabaseURL, o.Log, func(admin conf.Secret) error {
		token, err = o.issue(ctx, admin)
		return err
	})
	return token, err
}

// lockWait is how long a command waits for another one at the same data folder: longer
// than it takes to make a database.
const lockWait = 15 * time.Second

// WithDatabase calls f with the address of a data folder's database: that of the Signalbox
// that runs there; else the named one; else that of a server that runs during the call. It
// is an error if a Signalbox runs there on another database than the named one. It waits
// some seconds for another command that uses the folder.
func WithDatabase(ctx context.Context, data string, named conf.Secret, log *slog.Logger, f func(admin conf.Secret) error) error {
	dir, err := datadir.Open(data)
	if err != nil {
		return err
	}
	var running datadir.Running
	var alive bool
	if named == "" {
		running, alive, err = dir.LockOrRunning(ctx, lockWait)
		defer dir.Unlock()
	} else {
		running, alive, err = dir.Running()
	}
	switch {
	case errors.Is(err, datadir.ErrLocked):
		return fmt.Errorf("%w; if another command uses it, or Signalbox is starting there, try again in a moment", err)
	case err != nil:
		return err
	case alive && named != "" && named.Reveal() != running.DatabaseURL:
		return fmt.Errorf("the Signalbox that runs in %s uses a database other than DATABASE_URL: unset the variable, or stop that Signalbox", dir.Path())
	case alive:
		return f(conf.Secret(running.DatabaseURL))
	case named != "":
		if err := pg.Migrate(ctx, named.Reveal(), log, Migrations()...); err != nil {
			return fmt.Errorf("the database in DATABASE_URL for %s: %w (for a deployment, set its other variables too: --help)", dir.Path(), err)
		}
		return f(named)
	}
	return withServer(ctx, dir, log, func(admin conf.Secret) error {
		if err := pg.Migrate(ctx, admin.Reveal(), log, Migrations()...); err != nil {
			return err
		}
		return f(admin)
	})
}

// withServer calls f while it runs the database of a data folder.
func withServer(ctx context.Context, dir *datadir.Dir, log *slog.Logger, f func(admin conf.Secret) error) error {
	server, err := OpenDatabase(ctx, dir.Path("postgres"), log)
	if err != nil {
		return err
	}
	err = f(conf.Secret(server.URL(databaseName)))
	return errors.Join(err, server.Stop(context.WithoutCancel(ctx)))
}

func (o TokenOptions) issue(ctx context.Context, admin conf.Secret) (Token, error) {
	m := gateway.Migrations()
	db, err := pg.Open(ctx, pg.Config{URL: admin, Role: m.Role, Schema: m.Schema, MaxConns: 1, Application: "signalbox token"})
	if err != nil {
		return Token{}, err
	}
	defer db.Close()
	if err := gateway.EnsureMember(ctx, db, o.Workspace, workspaceName, o.Member, o.Role); err != nil {
		if o.DatabaseURL != "" {
			err = fmt.Errorf("DATABASE_URL: %w", err)
		}
		return Token{}, err
	}
	token, expires, err := identity.DevToken(o.Secret, o.Member, TokenLifetime)
	if err != nil {
		return Token{}, err
	}
	made := Token{Token: token, Workspace: o.Workspace, Member: o.Member, ExpiresAt: expires.UTC().Format(time.RFC3339)}
	if o.Console != "" {
		key, err := gateway.SignInLink(ctx, db, o.Member, time.Now().Add(linkLifetime))
		if err != nil {
			return Token{}, err
		}
		made.Link = strings.TrimSuffix(o.Console, "/") + "/in#k=" + key.Reveal()
	}
	return made, nil
}

const workspaceName = "Development"

// ensureMember makes the data folder's member and workspace, and a token and a link for it.
func (s *stack) ensureMember(ctx context.Context) (err error) {
	s.token, err = TokenOptions{
		Workspace: s.identity.Workspace, Member: s.identity.Member, Role: identity.Owner, Secret: conf.Secret(s.identity.Secret),
		Console: "http://" + s.public.Addr().String(),
	}.issue(ctx, conf.Secret(s.adminURL))
	return err
}
