package natsd

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockDir creates dir and locks it for this process: the server itself would let two servers
// write to the same files. The lock ends with the process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "natsd.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("the folder %s is in use by another process: stop it, or choose another folder (%w)", dir, err)
	}
	return f, nil
}

func (s *Server) unlock() {
	_ = s.lock.Close() // closing releases the lock; the second time fails
}
