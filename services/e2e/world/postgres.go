package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pgd"
)

// Postgres is a PostgreSQL server that can be killed. Unless it is durable, a kill may lose
// commits: only stop it then.
type Postgres struct {
	cfg pgd.Config

	mu     sync.Mutex // guards what follows
	server *pgd.Server
}

func startPostgres(ctx context.Context, dir string, o Options, settings []string) (*Postgres, error) {
	p := &Postgres{cfg: pgd.Config{Dir: dir, Fast: !o.Durable, MaxConnections: max(300, 30*o.Replicas), Settings: settings}}
	server, err := pgd.Start(ctx, p.cfg)
	if err != nil {
		return nil, err
	}
	p.server = server
	if o.Statements {
		if err := p.countStatements(ctx); err != nil {
			return p, errors.Join(fmt.Errorf("count statements: %w", err), p.Stop()) //nolint:contextcheck // it has a timeout of its own
		}
	}
	return p, nil
}

// countStatements loads pg_stat_statements, which takes a restart.
func (p *Postgres) countStatements(ctx context.Context) error {
	run := func(sql string) error {
		c, err := pgx.Connect(ctx, p.current().URL("postgres"))
		if err != nil {
			return err
		}
		_, err = c.Exec(ctx, sql)
		return errors.Join(err, c.Close(ctx))
	}
	if err := run("ALTER SYSTEM SET shared_preload_libraries = pg_stat_statements"); err != nil {
		return err
	}
	if err := errors.Join(p.Stop(), p.Restart()); err != nil { //nolint:contextcheck // they have timeouts of their own
		return err
	}
	return run("CREATE EXTENSION pg_stat_statements")
}

func (p *Postgres) current() *pgd.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

// Name implements Part.
func (p *Postgres) Name() string { return "postgres" }

// PID returns the postmaster's process id, 0 if it is not running.
func (p *Postgres) PID() int {
	text, err := os.ReadFile(filepath.Join(p.cfg.Dir, "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(line)) // 0 if it is not a number
	return pid
}

// Running implements Part.
func (p *Postgres) Running() bool {
	select {
	case <-p.current().Done():
		return false
	default:
		return true
	}
}

// Kill implements Part. It kills the postmaster, whose children then end by themselves.
func (p *Postgres) Kill() error {
	if !p.Running() {
		return nil
	}
	pid := p.PID()
	if pid == 0 {
		return errors.New("kill postgres: it has no process id")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill postgres: %w", err)
	}
	<-p.current().Done()
	return nil
}

// Stop implements Part.
func (p *Postgres) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	return p.current().Stop(ctx)
}

// Restart implements Part. When it returns, the server accepts connections.
func (p *Postgres) Restart() error {
	if p.Running() {
		return errors.New("postgres is running")
	}
	server, err := pgd.Start(context.Background(), p.cfg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
	return nil
}

// Ready implements Part.
func (p *Postgres) Ready(ctx context.Context) error {
	return p.current().EnsureDatabase(ctx, database)
}

// socket returns the path of its socket.
func (p *Postgres) socket() string { return filepath.Join(p.cfg.Dir, ".s.PGSQL.5432") }
