//go:build !linux

package mcp

import "syscall"

// processAttributes puts a server's process into a group of its own. There is no sandbox outside
// Linux.
func processAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
