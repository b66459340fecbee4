// Package owner preserves file ownership when root creates files: a service that runs as
// another user could not read them otherwise.
package owner

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Copy gives a file the owner and group of the file at a path. It is for files that the caller
// has just created: an existing one may be a link to anything. The error says as which user to
// try again; if there is nothing at the path it is fs.ErrNotExist.
func Copy(file *os.File, path string) error {
	want, err := os.Stat(path)
	if err != nil {
		return err
	}
	have, err := file.Stat()
	if err != nil {
		return err
	}
	uid, gid, ok := of(want)
	fileUID, fileGID, fileOK := of(have)
	if !ok || !fileOK || uid == fileUID && (gid == fileGID || os.Geteuid() != 0) {
		return nil
	}
	if err := file.Chown(uid, gid); err != nil {
		return fmt.Errorf("it belongs to user %d: run this as that user: %w", uid, err)
	}
	return nil
}

// CopyFolder is Copy from a folder, for root alone: other users own what they create.
func CopyFolder(file *os.File, folder string) {
	if os.Geteuid() == 0 {
		_ = Copy(file, folder) // otherwise the file is root's, like the process
	}
}

func of(info fs.FileInfo) (uid, gid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(s.Uid), int(s.Gid), true
}
