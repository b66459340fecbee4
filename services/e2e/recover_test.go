package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pgtest"

	"signalbox.dev/services/e2e/world"
)

// recovery is the time in which the standalone Signalbox must have recovered.
const recovery = 15 * time.Second

// TestPostgresIsRestarted checks that a standalone Signalbox restarts its Postgres after a kill
// and continues, and that Postgres requires a password.
func TestPostgresIsRestarted(t *testing.T) {
	t.Parallel()
	s := newSolo(t, "")
	run := s.submit("count to 100")
	pid := filepath.Join(s.data, "postgres", "postmaster.pid")
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	var postmaster int
	if _, err := fmt.Sscan(string(text), &postmaster); err != nil || postmaster <= 1 {
		t.Fatalf("postmaster.pid says %q", text)
	}
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("documents can be made", func() error { return s.createDocument("# After\n") })
	s.ends(run)
	s.ends(s.submit("hello"))

	address, err := pgx.ParseConfig(s.w.Database)
	if err != nil {
		t.Fatal(err)
	}
	address.Password = ""
	if c, err := pgx.ConnectConfig(t.Context(), address); err == nil {
		_ = c.Close(t.Context())
		t.Error("Postgres lets its administrator in without a password")
	}
}

// solo is a standalone Signalbox with one user.
type solo struct {
	t       *testing.T
	w       *world.World
	data    string
	client  world.Client
	session string
}

// newSolo starts one with its data in a folder, or in a temporary one if dir is empty.
func newSolo(t *testing.T, dir string) *solo {
	t.Helper()
	if dir == "" {
		dir = pgtest.Folder(t)
	}
	w, err := world.StartStandalone(t.Context(), world.Options{Dir: t.TempDir(), DataDir: dir, Programs: bin})
	if w != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("it says:\n%s", w.Proc(world.Standalone).Tail(6000))
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	who, err := w.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	s := &solo{t: t, w: w, data: filepath.Join(dir, "data"), client: w.Client(0, who)}
	if s.session, err = s.client.NewSession(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *solo) createDocument(content string) error {
	return s.client.Call(s.t.Context(), world.Request{
		Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "a document", "content": content},
	}, nil)
}

// submit sends a message, repeatedly while it is refused temporarily, and returns its run.
func (s *solo) submit(text string) string {
	s.t.Helper()
	var run world.Run
	s.until("a message is taken", func() (err error) {
		run, err = s.client.Submit(s.t.Context(), s.session, world.Sending{Content: text})
		return err
	})
	return run.ID
}

// ends waits until a run has succeeded.
func (s *solo) ends(id string) {
	s.t.Helper()
	s.until("the run has ended", func() error {
		run, err := s.client.Run(s.t.Context(), id)
		if err == nil && run.State != "done" {
			err = fmt.Errorf("the run is %s", run.State)
		}
		return err
	})
}

// until repeats a request until it succeeds. Only 503 is repeated.
func (s *solo) until(what string, ask func() error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), recovery)
	defer cancel()
	for begin := time.Now(); ; {
		err := ask()
		if err == nil {
			s.t.Logf("%v until %s", time.Since(begin).Round(time.Millisecond), what)
			return
		}
		if refused, ok := errors.AsType[*world.Refused](err); ok && refused.Status != http.StatusServiceUnavailable {
			s.t.Fatalf("until %s: %v", what, err)
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("no success within %v: %s: %v", recovery, what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ready returns the response of /ready.
func (s *solo) ready() error {
	err := s.client.Call(s.t.Context(), world.Request{Method: http.MethodGet, Path: "/ready"}, nil)
	if err != nil && !strings.Contains(err.Error(), "not ready") {
		s.t.Errorf("/ready = %v", err)
	}
	return err
}
