// Package e2e has the end-to-end stories: what people do with Signalbox, as scripts
// (testdata/script), each against two worlds of real programs:
//
//	standalone   `signalbox up`: one process, embedded NATS, private PostgreSQL
//	cluster      two replicas of each service as processes of their own, a NATS
//	             server with the permissions of deploy/nats, a PostgreSQL where each
//	             service logs in as itself
//
// The stories know only the public API. In the cluster, requests go to the first
// or the second gateway (-on 1, -on 2), and each gateway to replicas of its own.
// node holds the npm clients that front ends are built with.
//
// Package world starts the system and has a client of it, here and for the packages beside this
// one: kill kills parts under load and looks for losses, zombies lets lease holders go on after
// their lease and duplicates messages, faults breaks links, and failures lets model providers
// fail.
package e2e
