// Package kill tests that nothing accepted is lost while parts are killed. It runs Signalbox as
// separate processes, two replicas of each service, keeps conversations going at a rate, and
// keeps killing random parts with `kill -9` (services, PostgreSQL, NATS and the simulated
// provider) and restarting them. It records every event that any viewer sees, and checks the
// invariants of each conversation when it is over (check.go, history.go).
//
// # Who does what
//
//	killer         kills and restarts parts, and restarts those that ended by themselves
//	talkers        each holds one conversation after the other: a session, its messages,
//	               stops and steering (talk.go), with the script in script.yaml; and answers
//	               when agents ask for approval (person.go)
//	witnesses      the viewers of a session (witness.go): one stays connected as long as its
//	               gateway runs, one cuts its connection at random moments and resumes at a
//	               random gateway; senders watch their own runs
//	transcript     what a session's witnesses saw and its talker did (transcript.go)
//
// All randomness comes from one seed, which is printed. The same seed gives the same load and
// kills, but the timing inside the processes still differs.
package kill
