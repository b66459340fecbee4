//go:build !race

package choice_test

// thorough says that simulations take their full length.
const thorough = true
