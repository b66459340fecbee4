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
//	<name>.audit        the record: what happened to credentials, a row a line
//	<name>.damaged-…    one that did not parse, with the time at which that was found
//	.gitignore          names all of them; what else is in it is left as it is
//
// All of them are for whom the file is for, or else its folder, also where root makes them:
// a broker that runs as another user could not read what is root's. Who is not root and
// cannot leave the file to its owner changes nothing.
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
// # The record
//
// Rows of the record (package audit has their chain) are only ever appended, with the lock
// held, and durable before the file that they are about is in its place: whoever dies in
// between leaves a row of something that was not done. Whoever is about to do what cannot
// be undone, such as to send a token that is good once, looks first whether a row could be
// appended (CanRecord). The file knows where the record ended when it was written, as a
// database knows the head of a chain: rows that were taken from the end are missed.
// A use is a row once for each session: so that nobody waits long for the lock, a process
// that begins knows of those in the last 16 MiB, and may write an older one once more.
// Whoever can write both can make both anew; what a verification returned, kept elsewhere,
// shows that.
//
// # A file that cannot be used
//
// One that was cut off, torn or changed so that it does not parse or makes no sense is
// renamed, never written over, and logged with its new name. Until there is a file in its
// place again, or what was set aside is moved away, View and Update are errors that say
// so: an empty file would have requests go out under somebody else's credential. A broker
// that runs may go on with the accounts that it knows, and one that starts answers with
// that error.
// One of a newer version, or with a field that this version does not know, is left where
// it is and refused, for nothing is wrong with it, and what this version does not know it
// would lose; so is one that cannot be read. A file that is not there, and was not set aside,
// holds nothing.
package accountfile
