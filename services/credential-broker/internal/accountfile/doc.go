// Package accountfile keeps the accounts of a single user in one file, for a broker
// that has no database. It is what a few tables are there: packages store, oauth and
// rotation read a State and change it, and all secrets in it are sealed (package vault).
//
// # The file
//
// It is JSON, of mode 0600, and never written to: each change writes a whole new one
// beside it, syncs it, renames it into its place and syncs the folder. Whoever dies at
// any point leaves the old file or the new one. Beside it are
//
//	<name>.lock         held while somebody changes the file; it is empty and stays
//	<name>.tmp          a new one that is not finished; the next change writes over it
//	<name>.damaged-…    one that did not parse, with the time at which that was found
//	.gitignore          names all of them; what else is in it is left as it is
//
// # Several processes
//
// The broker and the command line, and any number of others on the same machine, work
// on one file at once, as they would on a database. Update takes the lock, reads the
// file as it is now, and replaces it: nobody loses what another has written. Reading
// takes no lock, because a file that is in its place never changes. Nobody holds the lock
// for longer than one change takes, and it ends with its process; who does not get it
// within 10 s is told so.
//
// An Update is durable when it returns. Those who learn something all the time
// (package pool) gather it for a second.
//
// # A file that cannot be used
//
// One that was cut off, torn or changed so that it does not parse or makes no sense is
// renamed, logged with its new name, and an empty one goes on in its place: it is never
// written over. One of a newer version, or with a field that this version does not know, is
// left where it is and refused, for nothing is wrong with it; so is one that cannot be
// read. A file that is not there holds nothing.
package accountfile
