//go:build !race

package feed

// worlds is the number of worlds of TestSeeds, and lossyWorlds of those in which it loses the log.
const (
	worlds      = 60
	lossyWorlds = 20
)
