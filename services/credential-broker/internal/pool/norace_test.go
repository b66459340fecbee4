//go:build !race

package pool_test

// thorough runs simulations at full length.
const thorough = true
