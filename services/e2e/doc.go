// Package e2e has the end-to-end stories: what people do with Signalbox, told as
// scripts (testdata/script), each against two worlds made of the real programs:
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
// Package world starts and speaks with the running system, here and for what lies
// beside the stories: kill kills its parts under load and counts what is lost, zombies has
// lease holders go on after their lease and messages come twice, faults
// breaks the links between them, failures has the model providers fail.
package e2e
