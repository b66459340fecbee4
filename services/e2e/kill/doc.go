// Package kill shows that nothing which was accepted is lost while everything is
// killed: it runs Signalbox as separate processes, two replicas of each service,
// keeps conversations going at a rate, and all the while kills a random part with
// `kill -9` (services, PostgreSQL, NATS and the simulated provider) and starts it
// again. Every event that any viewer sees is recorded, and each conversation is
// held against what must be true of it when it is over (check.go, history.go).
//
// # Who does what
//
//	killer         kills parts, starts them again, and starts again what ended by itself
//	talkers        each leads one conversation after the other: a session, its messages,
//	               stops and steering (talk.go); asks of the script in script.yaml
//	witnesses      the viewers of a session (witness.go): one stays as long as its
//	               gateway lives, one cuts its connection at random moments and resumes
//	               at a random gateway; senders watch their own runs
//	transcript     what a session's witnesses saw and its talker did (transcript.go)
//
// All randomness comes from one seed, which is printed. The same seed offers the
// same load and kills; what the processes do in between is theirs.
package kill
