package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const getTermios = unix.TCGETS

// unlock makes the other end of a pseudo-terminal available and returns its path.
func unlock(ours *os.File) (string, error) {
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return "", err
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	return fmt.Sprintf("/dev/pts/%d", n), err
}
