//go:build !race

package pool_test

// thorough says that simulations take their full length.
const thorough = true
