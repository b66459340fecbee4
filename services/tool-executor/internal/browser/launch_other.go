//go:build !linux

package browser

import "syscall"

// dieWithParent does nothing: outside Linux, the browser ends when it notices that the pipe to
// us is closed.
func dieWithParent(*syscall.SysProcAttr) {}
