package oauth_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// The size of TestProcesses: `make e2e-oauth` is 8 processes of 1,000 waiters.
var (
	processes = flag.Int("processes", 3, "broker instances, each a process")
	waiters   = flag.Int("waiters", 100, "callers in each process that wait for one token")
	expiries  = flag.Int("expiries", 12, "how often the token expires")
	seed      = flag.Uint64("seed", rand.Uint64N(1_000_000), "where all chance comes from")
)

// childVariable makes this test program a broker instance.
const childVariable = "SIGNALBOX_TEST_OAUTH_INSTANCE"

// instance is what a process is told of the world.
type instance struct{ Name, Database, Server, KeyFile string }

// ask tells a process that a token has expired; told is what its waiters got.
type (
	ask struct {
		Ref     oauth.Ref
		Waiters int
	}
	told struct {
		Tokens map[string]int // and how many got it
		Errors map[string]int // by code
	}
)

// TestProcesses has the token expire in front of many waiters in many processes, and
// in every second expiry kills the process that renews it, at every stage. The server
// rotates without grace and ends a grant whose refresh token comes twice.
func TestProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true, EndsAccess: true}, rotating)
	r := &race{world: w, t: t, keeper: w.keeper(), rand: rand.New(rand.NewPCG(*seed, 0)), admin: w.db.AdminURL}
	t.Logf("seed %d", *seed)
	for n := range *processes {
		r.procs = append(r.procs, r.spawn(n, 0))
	}
	r.ref = w.grant(r.keeper)
	for n := range *expiries {
		stage := ""
		if n%2 == 1 {
			stage = []string{"arrived", "rotated", "answered"}[n/2%3]
		}
		r.expiry(n, stage, n%20 == 19)
	}
	for _, p := range r.procs {
		p.end()
	}
	calls, lost := w.server.Calls(), len(w.rows(`SELECT id::text FROM credentials.grant_attempts WHERE outcome = 'lost'`))
	t.Logf("%d expiries of %d×%d waiters, %d kills: %d refreshes sent, %d repeated after a crash (%d attempts without an outcome), %d grants ended by it",
		*expiries, *processes, *waiters, r.kills, calls.Refresh, r.repeated, lost, calls.Ended)
	if calls.Ended > lost {
		t.Errorf("%d grants were ended for reuse, and only %d attempts were interrupted", calls.Ended, lost)
	}
	if calls.Refresh != *expiries+r.repeated || r.repeated > r.kills {
		t.Errorf("%d refreshes were sent for %d expiries and %d that had to be repeated after %d kills", calls.Refresh, *expiries, r.repeated, r.kills)
	}
}

type race struct {
	*world
	t      *testing.T
	keeper *oauth.Keeper
	rand   *rand.Rand
	admin  string
	procs  []*process
	ref    oauth.Ref

	kills, repeated int
}

// expiry lets the token expire once, with everybody waiting; if stage is not empty the
// process that renews it is killed there. patient leaves the lease to run out.
func (r *race) expiry(n int, stage string, patient bool) {
	r.t.Helper()
	before := r.server.Calls()
	lostBefore := r.lost()
	r.expire(r.ref, r.keeper)
	killed := make(chan int, 1)
	r.server.Watch(r.killer(stage, patient, time.Duration(r.rand.IntN(3000))*time.Microsecond, killed))
	results := make([]told, len(r.procs))
	dead := make([]bool, len(r.procs))
	var wg sync.WaitGroup
	for i, p := range r.procs {
		wg.Go(func() { results[i], dead[i] = p.ask(ask{r.ref, *waiters}) })
	}
	wg.Wait()
	r.server.Watch(nil)
	victim := -1
	if stage != "" {
		victim = receive(r.t, killed)
		r.kills++
	}
	for i := range r.procs {
		if dead[i] && i != victim {
			r.t.Fatalf("expiry %d: process %d died", n, i)
		}
	}
	calls := r.server.Calls()
	crashes := r.lost() - lostBefore
	sent := calls.Refresh - before.Refresh
	r.repeated += sent - 1
	if sent != 1+crashes {
		r.t.Errorf("expiry %d (%s): %d refreshes were sent with %d attempts interrupted, want one and one for each of these", n, stage, sent, crashes)
	}
	ended := calls.Ended > before.Ended
	for i, got := range results {
		if i != victim {
			r.judge(fmt.Sprintf("expiry %d (%s): process %d", n, stage, i), got, ended)
		}
	}
	if victim >= 0 {
		r.procs[victim].end()
		r.procs[victim] = r.spawn(victim, n+1)
	}
	if ended {
		r.ref = r.grant(r.keeper)
	}
}

// judge checks what the waiters of a process got.
func (r *race) judge(who string, got told, ended bool) {
	r.t.Helper()
	sum := 0
	for token, n := range got.Tokens {
		sum += n
		if !r.server.Good(token) {
			r.t.Errorf("%s: %d waiters got a token that the provider does not take", who, n)
		}
	}
	for code, n := range got.Errors {
		sum += n
		if !ended || code != "ACCOUNT_REAUTHORIZE" {
			r.t.Errorf("%s: %d waiters failed with %s", who, n, code)
		}
	}
	if sum != *waiters {
		r.t.Errorf("%s: %d of %d waiters came back", who, sum, *waiters)
	}
}

func (r *race) lost() int {
	return len(r.rows(`SELECT id::text FROM credentials.grant_attempts WHERE outcome = 'lost'`))
}

// killer returns a watch that kills, once, the process that has the attempt open. It
// runs on the server's goroutines.
func (r *race) killer(stage string, patient bool, late time.Duration, killed chan<- int) func(string) {
	var once sync.Once
	return func(at string) {
		if at != stage {
			return
		}
		once.Do(func() {
			kill := func() {
				name, err := r.renewing()
				if err != nil {
					r.t.Errorf("find out who renews: %v", err)
				}
				victim := r.kill(name)
				if !patient {
					r.endLease()
				}
				killed <- victim
			}
			if stage != "answered" {
				kill()
				return
			}
			// While the answer is on its way, is stored, or was.
			time.AfterFunc(late, kill)
		})
	}
}

// renewing returns the instance whose attempt was the last to be opened.
func (r *race) renewing() (name string, err error) {
	err = r.asAdmin(func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT instance FROM credentials.grant_attempts ORDER BY started_at DESC LIMIT 1`).Scan(&name)
	})
	return name, err
}

// endLease spares us the wait for a lease whose holder is known to be dead.
func (r *race) endLease() {
	err := r.asAdmin(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `UPDATE credentials.grants SET lease_until = now() WHERE attempt_id IS NOT NULL`)
		return err
	})
	if err != nil {
		r.t.Errorf("end the lease: %v", err)
	}
}

func (r *race) asAdmin(fn func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, r.admin)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return fn(ctx, c)
}

// kill ends a process without a word and returns its number, -1 if there is none.
func (r *race) kill(name string) int {
	for i, p := range r.procs {
		if p.name == name {
			_ = p.cmd.Process.Kill() // SIGKILL
			<-p.gone
			return i
		}
	}
	return -1
}

// process is an instance.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	gone chan struct{} // closed when it is not there any more
}

func (r *race) spawn(n, generation int) *process {
	r.t.Helper()
	name := fmt.Sprintf("broker-%d.%d", n, generation)
	text, err := json.Marshal(instance{name, r.admin, r.url, r.keyFile})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &process{name: name, cmd: exec.Command(os.Args[0]), gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	// Not StdoutPipe: what a killed process has written is read before it is waited for.
	read, write, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	p.cmd.Stdout = write
	p.in, p.out = in, bufio.NewReader(read)
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = write.Close()
	go func() {
		_ = p.cmd.Wait() // killed, or at its end
		close(p.gone)
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.gone
		_ = read.Close()
	})
	return p
}

// ask returns what the process's waiters got, or that it is dead.
func (p *process) ask(a ask) (got told, dead bool) {
	if err := json.NewEncoder(p.in).Encode(a); err != nil {
		return got, true
	}
	line, err := p.out.ReadBytes('\n')
	return got, err != nil || json.Unmarshal(line, &got) != nil
}

// end lets a process go.
func (p *process) end() {
	_ = p.in.Close()
	<-p.gone
}

// runChild is an instance: it answers an ask on each line until there are no more.
func runChild(text string) int {
	if err := serveChild(text); err != nil {
		fmt.Fprintln(os.Stderr, "instance:", err)
		return 1
	}
	return 0
}

func serveChild(text string) error {
	var i instance
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := pg.Open(ctx, pg.Config{URL: conf.Secret(i.Database), Role: schema().Role, Schema: schema().Schema, MaxConns: 4, Application: i.Name})
	if err != nil {
		return err
	}
	defer db.Close()
	key, err := vault.OpenFile(i.KeyFile)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "providers-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "sim.yaml"), []byte(providerYAML(i.Server, rotating)), 0o600); err != nil {
		return err
	}
	providers, err := oauth.Load(map[string]oauth.Client{"sim": {ID: "us", Secret: vault.NewSecret("hush")}}, os.DirFS(dir))
	if err != nil {
		return err
	}
	k := oauth.New(oauth.Config{
		Store: store.New(db), Vault: vault.New(key, store.New(db)), Providers: providers, Log: slog.New(slog.DiscardHandler), Instance: i.Name, UserAgent: "signalbox/test",
	})
	defer k.Close()
	for in := json.NewDecoder(os.Stdin); ; {
		var a ask
		if err := in.Decode(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(waitAll(ctx, k, a)); err != nil {
			return err
		}
	}
}

// waitAll has many wait for one token.
func waitAll(ctx context.Context, k *oauth.Keeper, a ask) told {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	k.Forget(a.Ref)
	got := told{map[string]int{}, map[string]int{}}
	var mu sync.Mutex // guards got
	var wg sync.WaitGroup
	for range a.Waiters {
		wg.Go(func() {
			token, err := k.Token(ctx, a.Ref)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				f := fault.From(err)
				got.Errors[cmp.Or(f.Code, f.Error())]++
				return
			}
			got.Tokens[token.Secret.Reveal()]++
		})
	}
	wg.Wait()
	return got
}
