package failures_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/e2e/world"
)

// rig is a cluster with one replica of each service, whose broker accepts accounts with any
// address.
type rig struct {
	*world.World
	db        *pgxpool.Pool // of an administrator
	env       map[string][]string
	signers   map[string]*identity.Signer // of the services
	dir       string                      // of the broker's profiles and OAuth providers
	simulator string                      // its base URL, before the world is up
	untrusted string                      // the base URL of a server with a certificate that nobody trusts
	accounts  credentialv1connect.AccountServiceClient
}

// noServer is an address on which no server listens.
const noServer = "http://127.0.0.1:1"

// newRig starts the cluster. env is additional environment by service.
func newRig(ctx context.Context, t *testing.T, env map[string][]string) *rig {
	t.Helper()
	strange := httptest.NewUnstartedServer(http.NotFoundHandler())
	strange.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	strange.StartTLS()
	t.Cleanup(strange.Close)
	r := &rig{dir: t.TempDir(), untrusted: strange.URL, env: env, signers: map[string]*identity.Signer{}}
	r.set(subject.CredentialBroker, "CREDENTIAL_BROKER_ALLOW_PRIVATE=true")
	r.trust(t)
	w, err := world.Start(ctx, world.Options{Dir: t.ArtifactDir(), Programs: programs, Replicas: 1, Partitions: 4, Via: r.via, Env: func(service string, _ int) []string {
		if service == subject.CredentialBroker {
			r.describe(t)
		}
		return r.env[service]
	}})
	if w != nil {
		t.Cleanup(func() { //nolint:contextcheck // it has to end whatever became of the test
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.World = w
	if r.db, err = pgxpool.New(ctx, w.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	opts, err := rpc.Client{Signer: r.signers[subject.Gateway], Audience: subject.CredentialBroker}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	r.accounts = credentialv1connect.NewAccountServiceClient(w.HTTP, "http://"+w.Replica(subject.CredentialBroker, 1).Addr, opts...)
	return r
}

func (r *rig) set(service string, env ...string) { r.env[service] = append(r.env[service], env...) }

// trust makes the services trust keys of the test, so that it can call them.
func (r *rig) trust(t *testing.T) {
	t.Helper()
	trusted := map[string]string{}
	for _, s := range world.Services() {
		key, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		trusted[s] = key.Public()
		r.signers[s] = identity.NewSigner(s, key)
		r.set(s, "SERVICE_KEY="+key.Encode())
	}
	for _, s := range world.Services() {
		r.set(s, "TRUSTED_KEYS="+identity.FormatTrusted(trusted))
	}
}

// via changes no link; it learns the simulator's address before the broker starts.
func (r *rig) via(l world.Link) (string, error) {
	if l.To == world.SimulatorName {
		r.simulator = "http://" + l.Address
	}
	return l.Address, nil
}

// mount is the simulator's path of a dialect.
var mount = map[string]string{"anthropic": "/anthropic", "openai": "/openai/v1"}

// shipped is the product's request profile for signing in to accounts of a dialect.
var shipped = map[string]string{"anthropic": "anthropic-oauth", "openai": "openai"}

// describe writes an OAuth provider for each dialect, which is the simulator, and the profile of
// its accounts: the product's, with the simulator's address.
func (r *rig) describe(t *testing.T) {
	t.Helper()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^(name|base_url|default_for):.*\n`)
	for dialect, profile := range shipped {
		text, err := os.ReadFile(filepath.Join(root, "services/credential-broker/internal/profile/profiles", profile+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, "profiles/"+signedIn(dialect)+".yaml",
			fmt.Sprintf("name: %s\nbase_url: %s%s\n%s", signedIn(dialect), r.simulator, mount[dialect], lines.ReplaceAll(text, nil)))
		r.write(t, "oauth/"+signedIn(dialect)+".yaml", strings.NewReplacer("NAME", signedIn(dialect), "DIALECT", dialect, "URL", r.simulator).Replace(
			"name: NAME\naccount: DIALECT\nprofile: NAME\nclient: {id: any, auth: none}\ntokens: {rotate: true}\n"+
				"endpoints: {authorize: URL/oauth/authorize, token: URL/oauth/token, code_page: URL/oauth/code}\n"))
	}
	r.set(subject.CredentialBroker, "CREDENTIAL_BROKER_PROFILES="+filepath.Join(r.dir, "profiles"), "CREDENTIAL_BROKER_OAUTH_PROVIDERS="+filepath.Join(r.dir, "oauth"))
}

func signedIn(dialect string) string { return "signed-in-" + dialect }

func (r *rig) write(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// as returns the context for a member's calls to the broker.
func as(ctx context.Context, who world.Member) (context.Context, error) {
	ws, err := id.Parse[id.Workspace](who.Workspace)
	if err != nil {
		return nil, err
	}
	member, err := id.Parse[id.Member](who.ID)
	return identity.With(ctx, identity.Actor{Workspace: ws, Member: member, Role: identity.Owner}), err
}

// add stores a key that begins with its label, with the provider's default profile if none is
// given.
func (r *rig) add(ctx context.Context, who world.Member, provider, profile, label, base string) error {
	ctx, err := as(ctx, who)
	if err != nil {
		return err
	}
	_, err = r.accounts.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: provider, Profile: profile, Label: label, Secret: label + "-0123456789abcdef", BaseUrl: base})
	return err
}

var pasted = regexp.MustCompile(`<code>(.*)</code>`)

// signIn signs in to the simulator with a pasted code, and predates the token by an hour: a new
// token is not renewed after a 401.
func (r *rig) signIn(ctx context.Context, who world.Member, provider, label string) error {
	ctx, err := as(ctx, who)
	if err != nil {
		return err
	}
	login, err := r.accounts.StartLogin(ctx, &credentialv1.StartLoginRequest{Provider: signedIn(provider), Kind: credentialv1.LoginKind_LOGIN_KIND_PASTE, Label: label})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, login.GetUrl(), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err != nil {
		return err
	}
	code := pasted.FindSubmatch(page)
	if code == nil {
		return fmt.Errorf("the provider showed no code: %s %.200s", res.Status, page)
	}
	if _, err = r.accounts.CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{Id: login.GetId(), Code: string(code[1])}); err != nil {
		return err
	}
	_, err = r.db.Exec(ctx, `update credentials.grants set issued_at = issued_at - interval '1 hour' where workspace_id = $1::uuid`, who.Workspace)
	return err
}
