// Package owner keeps files readable for whom they are: what root makes on a command line
// belongs to root, and a service that runs as somebody else could not read it.
package owner

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Like gives a file to whom the file at a path belongs, and to its group. It is for files
// that the caller has just made itself: one that was there may be a link to anything. The
// error says as whom to try again; where there is nothing at the path it is fs.ErrNotExist.
func Like(file *os.File, path string) error {
	there, err := os.Stat(path)
	if err != nil {
		return err
	}
	made, err := file.Stat()
	if err != nil {
		return err
	}
	uid, gid, ok := of(there)
	myUID, myGID, mine := of(made)
	if !ok || !mine || uid == myUID && (gid == myGID || os.Geteuid() != 0) {
		return nil
	}
	if err := file.Chown(uid, gid); err != nil {
		return fmt.Errorf("it belongs to the user %d: run this as that user: %w", uid, err)
	}
	return nil
}

// LikeFolder is Like for the owner of a folder, as far as root can do it.
func LikeFolder(file *os.File, folder string) {
	if os.Geteuid() == 0 {
		_ = Like(file, folder) // else it is root's, as the process is
	}
}

func of(info fs.FileInfo) (uid, gid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(s.Uid), int(s.Gid), true
}
