//go:build race

package sim

// raced says that the race detector watches, which takes its time.
const raced = true
