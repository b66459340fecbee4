//go:build !linux || !(amd64 || arm64)

package feed

import "syscall"

// send writes to a socket what it takes now: the runtime's are set not to wait.
func send(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// receive reads from a socket what is there, and does not wait.
func receive(fd uintptr, p []byte) (int, error) {
	n, err := syscall.Read(int(fd), p)
	return n, err
}
