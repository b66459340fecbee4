//go:build !linux

package pgd

import "syscall"

// namespaced is what only Linux has; elsewhere root changes to uid 65534 or fails.
func namespaced() *syscall.SysProcAttr { return ownGroup() }

// syncAfterCrash is how the files are brought to disk before a recovery.
const syncAfterCrash = "fsync"

// memoryFolder is what only Linux has.
func memoryFolder() string { return "" }
