package pgtest

import (
	"context"
	"net"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/pgd"
)

// Pool starts a PgBouncer in front of the database's server and returns the database's URL
// through it, for the first role. It ends with the test, which is skipped if there is no
// pgbouncer.
func (d *Database) Pool(t testing.TB, size int, role string, others ...string) string {
	t.Helper()
	program, err := pgd.FindPooler()
	if err != nil {
		t.Skip(err)
	}
	direct, err := pgx.ParseConfig(d.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	const password = "pooled"
	p := pgd.Pooler{Dir: Folder(t), Addr: addr, Host: direct.Host, Port: direct.Port, Logins: map[string]string{role: password}, Size: size}
	for _, other := range others {
		p.Logins[other] = password
	}
	args, err := p.Configure()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := osexec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &log, &log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	p.As(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("the pooler's log:\n%s", log.String())
		}
	})
	await(t, addr)
	return "postgres://" + role + ":" + password + "@" + addr + "/" + direct.Database + "?sslmode=disable"
}

// await returns when somebody listens at addr.
func await(t testing.TB, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the pooler does not listen: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
