//go:build !linux

package pgd

import "syscall"

// namespaced does nothing outside Linux, where root has to change to uid 65534.
func namespaced() *syscall.SysProcAttr { return ownGroup() }

// syncAfterCrash is how files are synced before a recovery.
const syncAfterCrash = "fsync"

// memoryFolder returns "" outside Linux.
func memoryFolder() string { return "" }
