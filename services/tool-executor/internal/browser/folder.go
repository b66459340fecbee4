package browser

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// folderPrefix begins the name of every browser's folder.
const folderPrefix = "signalbox-chromium-"

// folder is where a browser has its profile and its socket. It is locked while we use it, so that
// a process that starts can tell it from what a killed process has left.
type folder struct {
	path string
	lock *os.File
}

// folderTries bounds how often the folder is made again that another process, which has just
// started, removes before it is locked.
const folderTries = 10

func newFolder() (d *folder, err error) {
	for range folderTries {
		var path string
		if path, err = os.MkdirTemp("", folderPrefix); err != nil {
			return nil, err
		}
		if d, err = lockFolder(path); err == nil {
			break
		}
	}
	if err == nil && os.Geteuid() == 0 {
		if err = os.Chown(d.path, nobody, nobody); err != nil {
			_ = d.remove() // it is empty
		}
	}
	return d, err
}

// lockFolder returns an existing folder, unless another process uses it.
func lockFolder(path string) (*folder, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		_, err = os.Lstat(path) // else it was removed before it was locked
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return &folder{path, f}, nil
}

// removeTries bounds how often a browser's folder is removed: its processes may write until
// they are gone.
const removeTries = 50

// remove removes the folder. Others see it as in use until it is gone.
func (d *folder) remove() error {
	defer d.lock.Close() //nolint:errcheck // it was only read
	var err error
	for range removeTries {
		if err = os.RemoveAll(d.path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the kernel does not announce it
	}
	return err
}

// removeLeftovers removes the folders that killed processes have left.
func removeLeftovers(ctx context.Context, log *slog.Logger) {
	all, err := os.ReadDir(os.TempDir())
	if err != nil {
		log.WarnContext(ctx, "leftovers of browsers not looked for", "error", err)
		return
	}
	for _, e := range all {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), folderPrefix) {
			continue
		}
		d, err := lockFolder(filepath.Join(os.TempDir(), e.Name()))
		if err != nil {
			continue // in use, another user's, or gone
		}
		if err := d.remove(); err != nil {
			log.WarnContext(ctx, "leftover of a browser not removed", "dir", d.path, "error", err)
		}
	}
}
