//go:build race

package pool_test

// thorough runs simulations at full length, but not under the race detector: each runs in one
// goroutine.
const thorough = false
