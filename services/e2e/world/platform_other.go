//go:build !linux

package world

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func memoryFolder() string { return "" }
