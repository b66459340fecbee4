//go:build race

package feed

// The race detector takes its time.
const (
	worlds      = 10
	lossyWorlds = 5
)
