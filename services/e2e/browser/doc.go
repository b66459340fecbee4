// Package browser tests people who write in a document with TipTap, in real pages of Chromium,
// while an agent writes in it, too.
//
// The tests start a cluster with two replicas of each service (services/e2e/world) and a Node
// program, drive.mjs, which opens pages (page.mjs) in a browser and executes the tests' commands,
// such as typing keys. A page counts what its own editor writes into the shared document, so that
// the tests notice an editor that repairs an agent's changes.
//
// TestConsoleFailover is about a person who uses the console, with a program of the console's tests.
package browser
