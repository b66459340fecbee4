//go:build !linux

package canary_test

import (
	"testing"

	"signalbox.dev/services/e2e/world"
)

// readsMemory is false: without /proc, other processes' memory cannot be read.
const readsMemory, readsBroker = false, false

func memories(*testing.T, *marks, *world.World) {}

func memoryOf(*testing.T, *marks, *world.Proc, map[string]bool) {}
