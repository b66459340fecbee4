// Package sim runs the protocol of runs (claim, lease, retry, stop, queue, outbox)
// in a world that it makes up from a seed, thousands of times, and checks what must
// hold whatever happens. It consists of tests.
//
// # What is real and what is not
//
// Real is the code of a runner: loop, keeper, run log writer, outbox publisher,
// sweeper, toolbox and the model client with its codec, wired as service.go does.
// Around them, behind the interfaces that they declare, are models of Postgres
// (rows, which TestRowsArePostgres compares with the real one), of NATS (streams,
// work queues, nudges), of a model provider (HTTP) and of tool executors with the
// far ends of their tools. Two or three runners, up to three sessions and the people
// in them make one world. It lives in a bubble of testing/synctest: minutes of its
// time take milliseconds.
//
// # One request
//
// Everything that a runner asks of the world is a request (world.request): it takes
// a time that the seed says, has its whole effect in one moment under the world's
// lock, and answers later. Faults are what may happen on that way: the runner dies
// before or after the effect, or is stopped for half a minute like a process under
// SIGSTOP; the part is away, silent, or reachable for others only; the answer is
// lost; the queue delivers twice; JetStream loses everything.
//
// What the models leave out: a transaction is one moment here, so races of
// statements within transactions are not found, nor what only real connections do.
//
// # Seeds
//
// What happens follows from the seed. No two requests take effect in the same
// moment, and chance is drawn under the name of whoever draws, so that the order in
// which goroutines run does not matter: a seed that fails fails again. See
// seeds_test.go for how one seed is run with its trace.
//
// # Checks
//
// check_test.go and checklog_test.go say what must hold; plants_test.go plants
// faults into the models and sees them found.
package sim
