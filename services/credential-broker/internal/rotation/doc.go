// Package rotation replaces the keys that seal secrets while brokers run.
//
// A rotation goes through the workspaces one by one (Run):
//
//  1. Each of the workspace's data keys that another key-encryption key has wrapped is
//     wrapped by the present one.
//  2. A new data key is stored, which retires those before it. From then on every
//     broker seals with it, for it looks for the newest key each time.
//  3. Every sealed field of an older key version is opened and sealed anew, in batches.
//     A field is written only where it still has the bytes and the version that were
//     read; what a broker has written meanwhile stays.
//  4. Retired keys that no row uses are removed, a minute after they were retired, so
//     that whoever has just read a row can still open it.
//
// Sweep does the last two for what is retired, and every broker calls it once a minute:
// what a rotation left, because it was killed, or because a broker had sealed
// something with the former key at the last moment, is done then.
//
// In the file of a single user (inFile) there is one workspace, the operator's; steps and
// order are the same, and so is what stands below.
//
// # What if it dies here
//
// Anywhere: a row names the key version that opens it, both change in one statement,
// and a foreign key keeps each data key as long as a row names it. A rotation that is
// started again begins with new data keys, and takes along what the first one left.
// Any number may run at once; batches of one workspace wait for each other.
//
// A field that does not open, because it is damaged or its key-encryption key is not
// there, or is at a key service that does not open it now, is reported and left alone,
// with its data key. The rest goes on. Only where the present key does not wrap new data
// keys does a rotation end.
package rotation
