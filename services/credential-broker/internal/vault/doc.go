// Package vault seals secrets, so that tables, backups and logs hold none.
//
// Two layers of keys: every workspace has data keys, which seal its accounts'
// fields, and each data key is stored wrapped by the operator's key-encryption
// key (KEK), which is never in the database: in a file of its own (FileKey), or at a
// key service (ServiceKey), which keeps it. The operator's shared accounts belong to
// the zero workspace and have data keys of their own.
//
// Everything is AES-256-GCM with a random nonce in front. A sealed field is bound
// by associated data to its workspace, account, field and key version, and a
// wrapped data key to its workspace and version: a row that was copied elsewhere
// does not open. Key services take no associated data; what they wrap has a hash of
// it inside.
//
// # Which key
//
// Each wrapped key names the KEK that wrapped it. A Vault has one KEK that wraps new
// data keys and any number of others that only open (Ring). It seals with the newest
// data key that one of them opens, and makes one where there is none, so that a new key
// file seals new accounts even where the old file is lost. Seal reads the stored keys
// each time and Open where it sees a version for the first time: that is how brokers
// take up new keys while they run. Unwrapped data keys stay in memory, so that a key
// service is asked once for each, and may be away after that. One that does not open a
// data key keeps nobody from the others: it is asked for that one again some seconds
// later. What is yet to be had, and is had only once, such as a rotated refresh token, a
// Sealer seals that was made before.
//
// # Rotation
//
// A data key is current, then retired by the next one of its workspace, then removed
// when no row uses it any more. Package rotation does that, with NewDataKey, Reseal and
// Rewrap. The versions of a workspace's keys only go up.
//
// To change the KEK, every broker must have the new one among its others before one of
// them wraps with it, and the old one until nothing is wrapped by it.
//
// Plaintext exists in memory only, as a Secret, which prints as [redacted]
// however it is printed.
//
// A Vault is safe for concurrent use. If it dies between storing a new data key and
// the account sealed with it, an unused key remains, which is harmless.
package vault
