package mcp

import (
	"os"
	"syscall"
)

// processAttributes puts a server's process into a group of its own, which ends with us. A
// sandbox does not run as root.
func processAttributes(sandboxed bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if sandboxed && os.Geteuid() == 0 {
		a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return a
}
