// Package browser tells stories of people who write in a document with TipTap, in
// real pages of Chromium, while an agent writes in it too.
//
// The tests start a cluster with two replicas of each service (services/e2e/world)
// and a program in Node, drive.mjs, which opens pages (page.mjs) in one browser and
// does in them what the tests say: keys are typed as a person types them. A page
// counts what its own editor wrote into the shared document, so that an editor that
// repairs what an agent has written does not go unnoticed.
package browser
