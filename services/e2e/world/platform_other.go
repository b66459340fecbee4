//go:build !linux

package world

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }

func memoryFolder() string { return "" }
