package pool_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// childVariable makes this test program run an instance.
const childVariable = "SIGNALBOX_TEST_POOL_INSTANCE"

func TestMain(m *testing.M) {
	if child := os.Getenv(childVariable); child != "" {
		if err := runChild(child); err != nil {
			fmt.Fprintln(os.Stderr, "instance:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// orders configure a process.
type orders struct {
	Database, KeyFile string
	NATS, Password    string // empty for no bus
	WriteEvery        time.Duration
	RecordWait        time.Duration
	Mute              bool // what is learned cannot be written
	Actor             identity.Actor
}

// do has a process serve requests that succeed, and then one that parks the account. did is
// what it did.
type (
	do struct {
		Requests int
		Limit    bool
		Session  id.Session
	}
	did struct{ Account id.Account }
)

// process is an instance that can be killed.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	gone chan struct{} // closed when it is not there any more
}

func spawn(t *testing.T, o orders) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0]), gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe, which Wait closes: what a killed process has written must be read.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.out = write, bufio.NewReader(read)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	go func() {
		_ = p.cmd.Wait() // killed
		close(p.gone)
	}()
	t.Cleanup(func() {
		p.kill()
		_ = read.Close()
	})
	return p
}

// kill kills the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // SIGKILL; it may be gone
	<-p.gone
}

func (p *process) tell(d do) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(d); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) do(d do) id.Account {
	p.t.Helper()
	p.tell(d)
	line, err := p.out.ReadBytes('\n')
	var answer did
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err != nil {
		p.t.Fatalf("the process did not answer: %v", err)
	}
	return answer.Account
}

func (w *world) orders() orders {
	return orders{Database: w.database.AdminURL, KeyFile: w.keyFile, Actor: w.actor}
}

// What an instance has announced but not written is not lost with it: other instances write it.
func TestKilledBeforeItWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "one", w.actor.Workspace)
	w.add(w.actor.Workspace, "openai", "openai", "", "two", w.actor.Workspace)
	srv := natstest.New(t)
	other := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	other.take() // so that it knows the pool
	o := w.orders()
	o.NATS, o.Password, o.Mute = srv.ClientURL(), string(srv.Password(subject.CredentialBroker)), true
	victim := spawn(t, o)
	a := victim.do(do{Requests: 5, Limit: true})
	within(t, soon, "the other instance has heard of the cooldown", func() bool { return parked(other.state(a)) })
	victim.kill()
	third := w.instance(nil)
	await(t, "it is written", func() bool { return parked(third.state(a)) })
	if got := other.take(); got.ID == a {
		t.Error("the other instance uses the account")
	}
}

// A use is in the audit once its answer was shown, even if the process is killed right after.
func TestKilledAfterAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "one", w.actor.Workspace)
	w.add(w.actor.Workspace, "openai", "openai", "", "two", w.actor.Workspace)
	o := w.orders()
	o.WriteEvery, o.RecordWait = time.Hour, time.Minute
	for n := range 4 {
		victim := spawn(t, o)
		used := map[id.Session]id.Account{}
		for range 1 + 5*n {
			session := id.New[id.Session]()
			used[session] = victim.do(do{Requests: 1, Session: session})
		}
		victim.kill()
		rows, err := w.store.Audit(t.Context(), w.actor.Workspace, audit.Query{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row.Action == "used" && used[row.Session] == row.Account {
				delete(used, row.Session)
			}
		}
		if len(used) > 0 {
			t.Errorf("of %d uses %d are not in the audit", 1+5*n, len(used))
		}
	}
}

// An instance is killed again and again, at any moment: what was written stays, each request is
// counted at most once, and the successor continues. No more is lost than what it did since the
// write before the last.
func TestKilledWhileItCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "one", w.actor.Workspace)
	w.add(w.actor.Workspace, "openai", "openai", "", "two", w.actor.Workspace)
	seed := rand.Uint64N(1_000_000)
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 9))
	counted := func() (n int64) {
		t.Helper()
		all, err := w.store.Stats(t.Context(), w.actor.Workspace)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			n += s.Requests
		}
		return n
	}
	const each = 20
	done, lost := int64(0), int64(0)
	for round := range 6 {
		victim := spawn(t, w.orders())
		before := counted()
		var last, settled int64 // done before the last write ended, and before the one before it did
		for writes := 2 + rnd.IntN(2); writes > 0; writes-- {
			settled = last
			was := counted()
			for counted() == was { // without being told to stop
				last = done // it has not ended yet
				victim.do(do{Requests: each})
				done += each
			}
		}
		written := counted()
		victim.tell(do{Requests: each}) // which may be done, or not
		done += each
		victim.kill()
		after := counted()
		switch most := done - lost; {
		case after < written:
			t.Errorf("round %d: %d requests were counted, and %d after the kill", round, written, after)
		case after > most:
			t.Errorf("round %d: %d requests are counted of %d at most", round, after, most)
		case after < settled-lost:
			t.Errorf("round %d: %d requests are counted, and %d were done before the write before the last had ended", round, after, settled-lost)
		case after == before:
			t.Errorf("round %d: nothing was counted", round)
		}
		lost = done - after
	}
	t.Logf("%d requests, of which %d were not written when their process was killed", done, lost)

	victim := spawn(t, w.orders())
	a := victim.do(do{Limit: true})
	await(t, "the cooldown is written", func() bool {
		known, err := w.store.Known(t.Context(), w.actor.Workspace)
		return err == nil && len(known.Limits[a]) > 0
	})
	victim.kill()
	if s := w.instance(nil).state(a); !parked(s) || s.Health > 91 {
		t.Errorf("its successor knows %+v, want the cooldown and the health", s)
	}
}

// runChild runs an instance that does what each line of its input says.
func runChild(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := pg.Open(ctx, pg.Config{URL: conf.Secret(o.Database), Role: "signalbox_credentials", Schema: "credentials", MaxConns: 4, Application: "killed"})
	if err != nil {
		return err
	}
	defer db.Close()
	key, err := vault.OpenFile(o.KeyFile)
	if err != nil {
		return err
	}
	profiles, err := profile.Load("1", profile.Shipped())
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	s := store.New(db)
	cfg := pool.Config{Store: s, Vault: vault.New(key, s), Profiles: profiles, CheckBase: target.Policy{}.CheckBase, Log: log, WriteEvery: o.WriteEvery, RecordWait: o.RecordWait}
	if o.Mute {
		mute := &away{Store: s}
		mute.gone.Store(true)
		cfg.Store = mute
	}
	if o.NATS != "" {
		if cfg.Bus, err = bus.Connect(ctx, bus.Config{Service: subject.CredentialBroker, URL: o.NATS, Password: conf.Secret(o.Password), Log: log}); err != nil {
			return err
		}
		defer cfg.Bus.Close()
	}
	set, err := pool.New(cfg)
	if err != nil {
		return err
	}
	go func() { _ = set.Run(ctx) }() // until it is killed
	for in := json.NewDecoder(os.Stdin); ; {
		var d do
		if err := in.Decode(&d); err != nil {
			return nil //nolint:nilerr // the parent is gone
		}
		answer, err := obey(ctx, set, o.Actor, d)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return err
		}
	}
}

func obey(ctx context.Context, set *pool.Set, actor identity.Actor, d do) (answer did, err error) {
	out := pool.Outcome{Reason: pool.OK}
	for n := range d.Requests + 1 {
		if n == d.Requests {
			if !d.Limit {
				break
			}
			out = pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: time.Hour}
		}
		actor.Session = d.Session
		a, err := set.Select(ctx, pool.Request{Actor: actor, Provider: "openai"})
		if err != nil {
			return answer, err
		}
		if out.Reason == pool.OK {
			set.Began(a)
		}
		set.Report(ctx, a, out)
		answer.Account = a.ID
	}
	return answer, nil
}
