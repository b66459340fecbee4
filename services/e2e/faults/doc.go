// Package faults shows what Signalbox does while the network between its parts, a
// part itself or a disk misbehaves: its tests run clusters of real programs
// (package world) with a proxy on every link (package faultproxy), a small constant
// load of runs with tools and viewers, and one trouble after the other.
//
// What must hold is the same for every trouble:
//
//   - every run that was accepted ends within its deadline, with the whole answer or
//     with an error that says what happened; never with a part of an answer as if it
//     were the whole
//   - every viewer sees a run's events once, in order and without a hole, or gets a
//     snapshot in place of what is gone
//   - a request is answered, if only with an error, and mended by a retry under the
//     same key; no tool takes effect twice
//   - when the trouble is over, a new run is as quick as before, without hands, and
//     goroutines and connections return to where they were
//
// A short version runs by default. SIGNALBOX_E2E_FAULTS=full, which `make e2e-faults`
// sets, runs all: every link with every fault, and what needs more time.
package faults
