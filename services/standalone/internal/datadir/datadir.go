// Package datadir is the folder in which a standalone Signalbox keeps everything:
//
//	identity.json   the workspace and the member of development tokens, and the secret
//	                that signs them; made once, never changed
//	postgres/       the private database (package pgd)
//	nats/           JetStream (package natsd)
//	keys/           the key-encryption key of the credential broker
//	running.json    how to reach a running `signalbox up`
//	lock            held by the process that runs it
//	.gitignore      keeps all of it out of a repository
//
// Files are written to a temporary name and renamed, so that a crash leaves the old or the
// new file. A file that does not parse is an error that says what to do; it is never
// overwritten.
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

// Open makes the folder if it is missing, readable by its owner only. Others may traverse,
// but not list, root's folder: Postgres does not run as root and must reach its own folder
// inside. Everything else in the folder has restrictive modes of its own.
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
		return nil, fmt.Errorf("create the data folder: %w: choose another one with --data", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm() == 0o700 && mode != 0o700 { // because of the umask or an earlier version
		if err := os.Chmod(path, mode); err != nil {
			return nil, fmt.Errorf("give Postgres access through the data folder: %w", err)
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

// Holds reports whether a folder has the data of a Signalbox, running or not. It changes
// nothing.
func Holds(path string) bool {
	for _, name := range []string{"postgres", "running.json"} {
		if _, err := os.Stat(filepath.Join(path, name)); err == nil {
			return true
		}
	}
	return false
}

// Look is Running for a folder that is not open. It changes nothing. An error says what is
// damaged.
func Look(path string) (Running, bool, error) {
	d := &Dir{path: path}
	if found, err := d.read("identity.json", &Identity{}); !found || err != nil {
		return Running{}, false, err
	}
	return d.Running()
}

// Path returns the path of a file in the folder.
func (d *Dir) Path(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

// ErrLocked says that another process uses the data folder.
var ErrLocked = errors.New("in use")

// Lock locks the folder until Unlock, or until the process ends in any way.
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

// lockPoll is how often LockOrRunning retries.
const lockPoll = 50 * time.Millisecond

// LockOrRunning locks the folder, unless a Signalbox runs in it: then it returns how to
// reach that. It waits up to wait for other holders of the lock, such as a command, or a
// Signalbox that is starting.
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
				d.ClearRunning() // of a process that was killed, so that it does not describe this one
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

// InUse returns the error, an ErrLocked, for a folder that another Signalbox uses.
func (d *Dir) InUse() error {
	return fmt.Errorf("the data folder %s is %w by another Signalbox: stop that one, or choose another folder with --data", d.path, ErrLocked)
}

// Unlock unlocks the folder. Without a Lock it does nothing.
func (d *Dir) Unlock() {
	if d.lock != nil {
		_ = d.lock.Close() // closing drops the lock
		d.lock = nil
	}
}

// Identity is the subject of development tokens.
type Identity struct {
	Workspace id.Workspace `json:"workspace_id"`
	Member    id.Member    `json:"member_id"`
	// Secret signs development tokens (HS256).
	Secret string `json:"dev_secret"`
}

// Identity returns the folder's identity, which the first call makes.
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

// Adopt makes an identity for an existing workspace and member. If the folder has one already,
// it must be theirs.
func (d *Dir) Adopt(ws id.Workspace, member id.Member) error {
	var known Identity
	found, err := d.read("identity.json", &known)
	switch {
	case err != nil:
		return err
	case found && (known.Workspace != ws || known.Member != member):
		return fmt.Errorf("the data folder %s has been used: choose a new one with --data", d.path)
	case found:
		return nil
	}
	return d.write("identity.json", Identity{Workspace: ws, Member: member, Secret: rand.Text() + rand.Text()})
}

// Running says how to reach a running Signalbox.
type Running struct {
	PID int    `json:"pid"`
	URL string `json:"url"`
	// OpsURL serves /health, /ready and /metrics.
	OpsURL      string `json:"ops_url"`
	DatabaseURL string `json:"database_url"`
}

// Running returns what SetRunning wrote, and whether that process is alive.
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

// SetRunning writes how to reach this process.
func (d *Dir) SetRunning(r Running) error { return d.write("running.json", r) }

// ClearRunning removes what SetRunning wrote.
func (d *Dir) ClearRunning() { _ = os.Remove(d.Path("running.json")) } // the lock reveals a stale file

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
	return fmt.Errorf("%s is damaged (%w): restore it from a backup, or move the whole folder away to start over", d.Path(name), err)
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
		_ = os.Remove(tmp.Name()) // the temporary file
		return fmt.Errorf("write to the data folder: %w", err)
	}
	return nil
}
