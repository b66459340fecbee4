//go:build race

package pool_test

// thorough says that simulations take their full length: not under the race detector, which
// finds nothing in them, as each is one goroutine's.
const thorough = false
