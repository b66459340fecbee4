// Package world runs Signalbox as it is deployed: the real programs in processes of their own,
// a NATS server with the permissions of deploy, and a PostgreSQL with a login for each service.
// The end-to-end stories, the kill and fault harnesses and the load programs use it, with the
// same small client.
//
// A World is started by Start (a cluster with replicas of each service) or by StartStandalone
// (`signalbox up`). Each of its parts is a Part that can be killed and restarted with the same
// address, environment and log file. Options.Via inserts proxies between parts. Attach makes a World
// of an installation that runs already.
//
// # Who owns what
//
// A World owns its processes and folders, and Close removes them. If the caller dies without
// Close, Linux ends the processes with it (on other systems they stay), and the next world
// removes data left in memory. A goroutine per process waits for its end. All methods may be
// called from any goroutine, except that Kill, Stop and Restart of a part must not overlap.
package world
