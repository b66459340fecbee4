// Package accountfile keeps the accounts of a single user in one file, for a broker without a
// database. What takes tables there is a State here (package store reads and changes it); all
// secrets in it are sealed (package vault).
//
// # The file
//
// It is JSON with mode 0600 and is never written in place: each change writes a new file beside
// it, syncs it, renames it and syncs the folder. A process that dies at any point leaves the old
// file or the new one. Beside it are
//
//	<name>.lock         held while a process changes the file; it is empty and stays
//	<name>.tmp          an unfinished new file; the next change replaces it
//	<name>.audit        the audit: what happened to credentials, one row a line
//	<name>.damaged-…    a file that did not parse, with the time at which that was found
//	.gitignore          names all of them; its other lines are left alone
//
// All of them get the owner of the file, or of its folder, also when root creates them: a broker
// that runs as another user could not read root's. A process that is neither root nor the owner
// changes nothing.
//
// # Several processes
//
// The broker and the command line, and any number of others on the machine, work on one file at
// once, as they would on a database. Update takes the lock, reads the file, and replaces it, so
// that no process loses what another has written, and is durable when it returns. Reading takes
// no lock, because a file never changes once it is in place. A lock is held for one change, and
// ends with its process; whoever does not get it within 10 s gets an error.
//
// # The audit
//
// Rows (package audit has their chain) are only appended, with the lock held, and are durable
// before the file that they are about is replaced: a process that dies in between leaves a row
// about something that was not done. A caller that is about to do what cannot be undone, such as
// to send a token that is good once, first checks that a row could be appended (CanRecord). The
// file knows where the audit ended when it was written, as a database knows the head of a chain,
// so that rows removed from the end are missed. A use is recorded once for each session; a new
// process only reads the last 16 MiB for that, and may record an older one once more. Somebody
// who can write both files can forge both; a verification's result, kept elsewhere, shows it.
//
// # A file that cannot be used
//
// A file that does not parse, or makes no sense, is renamed, never overwritten, and logged with
// its new name. Until a file is back in its place, or the damaged one is moved away, View and
// Update return an error that says so: with an empty file requests would go out under somebody
// else's credential. A running broker may continue with the accounts that it knows.
//
// A file of a newer version, or with an unknown field, is left in place and refused, because this
// version would lose what it does not know; so is one that cannot be read. A file that does not
// exist, without a damaged one beside it, holds nothing.
package accountfile
