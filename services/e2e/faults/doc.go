// Package faults tests Signalbox with faults of the network between its parts, of the parts
// themselves and of disks. Its tests run clusters of real programs (package world) with a proxy
// on every link (package faultproxy), a small constant load of runs with tools and viewers, and
// one fault after the other.
//
// The invariants are the same for every fault:
//
//   - every accepted run ends within its deadline, with the whole answer or with an error that
//     says what happened; never with a partial answer as if it were complete
//   - every viewer sees a run's events once and in order, without gaps, or gets a snapshot instead
//     of missing events
//   - a request gets a response, even if it is an error, and a retry under the same key succeeds;
//     no tool takes effect twice
//   - after the fault a new run is as fast as before, without manual repair, and the numbers of
//     goroutines and connections return to normal
//
// A short version runs by default. SIGNALBOX_E2E_FAULTS=full, which `make e2e-faults` sets, runs
// everything: every link with every fault, and slower tests.
package faults
