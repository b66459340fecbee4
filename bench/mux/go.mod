module signalbox.dev/bench/mux

go 1.26.1

require (
	github.com/hashicorp/yamux v0.1.2
	signalbox.dev/pkg v0.0.0
)

replace (
	signalbox.dev/pkg => ../../pkg
	signalbox.dev/proto => ../../proto
)
