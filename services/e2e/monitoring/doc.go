// Package monitoring tests what operators see: the alerts and the dashboard of deploy, in a real
// Prometheus that scrapes a cluster.
//
// Queries returns the dashboard's expressions, Rules the alerts with shorter durations, and API asks
// a Prometheus. The package's test, which `make e2e-metrics` runs, causes a fault for each alert,
// waits until it fires, checks that what docs/runbook.md tells operators to look at shows the cause,
// ends the fault, and waits until nothing fires. In the end every expression must have had a value at
// some time.
package monitoring
