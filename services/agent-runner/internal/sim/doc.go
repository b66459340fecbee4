// Package sim is a deterministic simulation test of the run protocol (claim, lease, retry,
// stop, queue, outbox). It runs the protocol in thousands of worlds, each generated from a
// seed, and checks invariants. It consists of tests.
//
// # What is real and what is simulated
//
// The code of a runner is real: loop, keeper, run log writer, outbox publisher, sweeper,
// toolbox and the model client with its codec, wired as in service.go. Around them, behind the
// interfaces that they declare, are models of Postgres (rows, which TestRowsArePostgres
// compares with the real one), of NATS (streams, work queues, nudges), of a model provider
// (HTTP) and of tool executors with the remote sides of their tools. A world has two or three
// runners and up to three sessions with their people. It runs in a testing/synctest bubble, in
// which minutes take milliseconds.
//
// # Requests
//
// Everything that a runner asks of the world is a request (world.request). It takes a time
// derived from the seed, has its whole effect at one time under the world's lock, and is
// answered later. Faults happen on the way: the runner dies before or after the effect, or is
// stopped for half a minute like a process under SIGSTOP; the dependency is unavailable,
// silent, or reachable only for other processes; the reply is lost; the queue delivers twice;
// JetStream loses all its data.
//
// The models simplify: a transaction is atomic, so the simulation finds neither races between
// statements of transactions nor effects of real connections.
//
// # Seeds
//
// The seed determines everything. No two requests take effect at the same time, and each
// random number comes from a sequence of its user's own name, so that the order in which
// goroutines run does not matter and a failing seed fails again. seeds_test.go says how to run
// one seed with its trace.
//
// # Checks
//
// check_test.go and checklog_test.go check the invariants. plants_test.go plants faults into
// the models and checks that they are found.
package sim
