//go:build amd64 || arm64

package feed

import (
	"syscall"
	"unsafe"
)

// send writes to a socket what it takes now, and does not wait. The runtime is not
// told of the system call (RawSyscall): the call is short and cannot block, and with
// thousands of them a second being told keeps its monitor awake, which looks for
// processors to take away every 20 µs.
func send(fd uintptr, p []byte) (int, error) {
	return transfer(syscall.SYS_SENDTO, fd, p)
}

// receive reads from a socket what is there, and does not wait.
func receive(fd uintptr, p []byte) (int, error) {
	return transfer(syscall.SYS_RECVFROM, fd, p)
}

func transfer(call, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
