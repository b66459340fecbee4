// Package world runs Signalbox as it is deployed: the real programs as processes
// of their own, with a NATS server under deploy's permissions and a PostgreSQL
// where each service logs in as itself. The end-to-end stories, the kill and fault
// harnesses and the load programs start their worlds here, and speak with them
// through the same small client.
//
// A World is made by Start (a cluster: replicas of each service) or by
// StartStandalone (`signalbox up`). Each of its parts is a Part that can be killed
// and started again at the same address with the same environment, and writes on
// in its own log. Via puts something between the parts.
//
// # Who owns what
//
// A World owns its processes and folders; Close ends all of it. Where the caller
// dies without Close, Linux ends the processes with it (elsewhere they stay), and
// the next world removes what was left of data in memory. One goroutine per
// process waits for its end. All methods may be called from any goroutine, but
// Kill, Stop and Restart of one part not at the same time.
package world
