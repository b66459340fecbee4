// Package datadir is the folder in which a standalone Signalbox keeps everything:
//
//	identity.json   the workspace and the person that development tokens stand for,
//	                and the secret they are signed with; made once, never changed
//	postgres/       the private database (package pgd)
//	nats/           JetStream (package natsd)
//	keys/           the key-encryption key of the credential broker
//	running.json    while `signalbox up` runs: how to reach it
//	lock            held by whoever runs it
//	.gitignore      keeps all of it out of a repository
//
// Files are written beside their place and renamed, so that a crash leaves the old
// one or the new one. A file that does not parse is an error that says what to do,
// and is never written over.
package datadir

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"signalbox.dev/pkg/id"
)

// Dir is an open data folder.
type Dir struct {
	path string
	lock *os.File
}

// Open makes the folder if it is not there, readable by its owner alone. Root's may
// be passed through, but not listed, by others: Postgres does not run as root and has
// to reach its own folder in it. What else is in it is closed by itself.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	err = os.MkdirAll(path, mode)
	if err == nil {
		err = os.MkdirAll(filepath.Join(path, "keys"), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("make the data folder: %w: choose another one with --data", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm() == 0o700 && mode != 0o700 { // the umask's, or an earlier version's
		if err := os.Chmod(path, mode); err != nil {
			return nil, fmt.Errorf("let Postgres pass through the data folder: %w", err)
		}
	}
	d := &Dir{path: path}
	ignore := d.Path(".gitignore")
	if _, err := os.Stat(ignore); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(ignore, []byte("*\n"), 0o600); err != nil {
			return nil, fmt.Errorf("write to the data folder: %w: choose another one with --data", err)
		}
	}
	return d, nil
}

// Holds tells whether a folder has, or serves at this moment, the data of a Signalbox. It
// makes nothing.
func Holds(path string) bool {
	for _, name := range []string{"postgres", "running.json"} {
		if _, err := os.Stat(filepath.Join(path, name)); err == nil {
			return true
		}
	}
	return false
}

// Look is Running without an open folder: it makes nothing. An error says what is damaged.
func Look(path string) (Running, bool, error) {
	d := &Dir{path: path}
	if found, err := d.read("identity.json", &Identity{}); !found || err != nil {
		return Running{}, false, err
	}
	return d.Running()
}

// Path returns the path of something in the folder.
func (d *Dir) Path(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

// ErrLocked means that another process runs this data folder.
var ErrLocked = errors.New("in use")

// Lock takes the folder for this process, until Unlock or its end, however it ends.
func (d *Dir) Lock() error {
	f, err := os.OpenFile(d.Path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the data folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return d.InUse()
	}
	d.lock = f
	return nil
}

// lockPoll is how often LockOrRunning looks again.
const lockPoll = 50 * time.Millisecond

// LockOrRunning takes the folder like Lock, unless a Signalbox runs in it: then it
// returns how to reach that. Whoever else has the folder, such as a command that looks
// something up, or one that is starting, is waited for as long as wait.
func (d *Dir) LockOrRunning(ctx context.Context, wait time.Duration) (r Running, alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	again := time.NewTicker(lockPoll)
	defer again.Stop()
	for {
		if r, alive, err = d.Running(); alive || err != nil {
			return r, alive, err
		}
		if err = d.Lock(); !errors.Is(err, ErrLocked) {
			if err == nil {
				d.ClearRunning() // of one that was killed: nobody is to take it for this process's
			}
			return Running{}, false, err
		}
		select {
		case <-ctx.Done():
			return Running{}, false, err
		case <-again.C:
		}
	}
}

// InUse returns the error, an ErrLocked, of who finds another one there.
func (d *Dir) InUse() error {
	return fmt.Errorf("the data folder %s is %w by another Signalbox: stop that one, or choose another folder with --data", d.path, ErrLocked)
}

// Unlock gives the folder back. Without a Lock it does nothing.
func (d *Dir) Unlock() {
	if d.lock != nil {
		_ = d.lock.Close() // closing drops the lock
		d.lock = nil
	}
}

// Identity is whom development tokens stand for.
type Identity struct {
	Workspace id.Workspace `json:"workspace_id"`
	Member    id.Member    `json:"member_id"`
	// Secret signs development tokens (HS256).
	Secret string `json:"dev_secret"`
}

// Identity returns the folder's identity, made at the first call.
func (d *Dir) Identity() (Identity, error) {
	var known Identity
	found, err := d.read("identity.json", &known)
	if err != nil {
		return known, err
	}
	if found {
		if id.IsZero(known.Workspace) || id.IsZero(known.Member) || len(known.Secret) < 32 {
			return known, d.damaged("identity.json", errors.New("fields are missing"))
		}
		return known, nil
	}
	fresh := Identity{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Secret: rand.Text() + rand.Text()}
	if err := d.write("identity.json", fresh); err != nil {
		return Identity{}, err
	}
	return fresh, nil
}

// Running says how to reach what runs here.
type Running struct {
	PID int    `json:"pid"`
	URL string `json:"url"`
	// OpsURL has the pages for operators: /health, /ready, /metrics.
	OpsURL      string `json:"ops_url"`
	DatabaseURL string `json:"database_url"`
}

// Running returns what `signalbox up` noted, and whether it is still there.
func (d *Dir) Running() (Running, bool, error) {
	var r Running
	found, err := d.read("running.json", &r)
	if !found || err != nil {
		return r, false, err
	}
	probe := &Dir{path: d.path}
	switch err := probe.Lock(); {
	case errors.Is(err, ErrLocked):
		return r, true, nil
	case err != nil:
		return r, false, err
	}
	probe.Unlock()
	return r, false, nil
}

// SetRunning notes how to reach this process; ClearRunning takes it back.
func (d *Dir) SetRunning(r Running) error { return d.write("running.json", r) }

// ClearRunning forgets what SetRunning noted.
func (d *Dir) ClearRunning() { _ = os.Remove(d.Path("running.json")) } // a stale note is told by the lock

func (d *Dir) read(name string, into any) (found bool, err error) {
	b, err := os.ReadFile(d.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the data folder: %w", err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, d.damaged(name, err)
	}
	return true, nil
}

func (d *Dir) damaged(name string, err error) error {
	return fmt.Errorf("%s is damaged (%w): put it back from a backup, or move the whole folder away to begin anew", d.Path(name), err)
}

func (d *Dir) write(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	tmp, err := os.CreateTemp(d.path, name+".*")
	if err != nil {
		return fmt.Errorf("write to the data folder: %w", err)
	}
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), d.Path(name))
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // it was never in its place
		return fmt.Errorf("write to the data folder: %w", err)
	}
	return nil
}
