//go:build !linux

package canary_test

import (
	"testing"

	"signalbox.dev/services/e2e/world"
)

// readsMemory: where there is no /proc, other processes' memory stays closed.
const readsMemory, readsBroker = false, false

func memories(*testing.T, *marks, *world.World) {}

func memoryOf(*testing.T, *marks, *world.Proc, map[string]bool) {}
