// Package e2e has the end-to-end stories: what people do with Signalbox, as scripts
// (testdata/script). Each story runs in two worlds of real programs:
//
//	standalone   `signalbox up`: one process, embedded NATS, private PostgreSQL
//	cluster      two replicas of each service as processes of their own, a NATS
//	             server with the permissions of deploy/nats, and a PostgreSQL where each
//	             service logs in as itself
//
// The stories use only the public API. In the cluster, a request goes to the first or the
// second gateway (-on 1, -on 2), and each gateway uses other replicas of the services.
// The folder node holds the npm clients that front ends are built with.
//
// Package world starts the system and provides a client, for this package and for the others in
// this folder: kill kills parts under load and looks for losses, zombies suspends lease holders
// until their lease has expired and duplicates messages, faults breaks links, and failures
// simulates failures of model providers.
package e2e
