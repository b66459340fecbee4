package main

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const getTermios = unix.TIOCGETA

// unlock makes the other end of a pseudo-terminal available and returns its path.
func unlock(ours *os.File) (string, error) {
	fd := int(ours.Fd())
	if err := errors.Join(unix.IoctlSetInt(fd, unix.TIOCPTYGRANT, 0), unix.IoctlSetInt(fd, unix.TIOCPTYUNLK, 0)); err != nil {
		return "", err
	}
	var name [128]byte // the size is part of the request
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCPTYGNAME, uintptr(unsafe.Pointer(&name))); err != 0 {
		return "", err
	}
	return unix.ByteSliceToString(name[:]), nil
}
