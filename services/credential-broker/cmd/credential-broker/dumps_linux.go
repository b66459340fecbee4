package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// protectMemory has the kernel write this process' memory to no file, and show it to no other
// process of the same user: it holds every secret. Root can read it all the same.
func protectMemory() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("disable core dumps: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("disable core dumps: %w", err)
	}
	return nil
}
