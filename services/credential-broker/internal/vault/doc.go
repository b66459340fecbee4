// Package vault seals secrets, so that tables, backups and logs hold none.
//
// There are two layers of keys. Every workspace has data keys, which seal its accounts' fields,
// and each data key is stored wrapped by the operator's key-encryption key (KEK), which is never
// in the database: in a file of its own (FileKey), or at a key service (ServiceKey), which keeps
// it. The operator's shared accounts belong to the zero workspace and have data keys of their own.
//
// Everything is AES-256-GCM with a random nonce in front. A sealed field is bound by associated
// data to its workspace, account, field and key version, and a wrapped data key to its workspace
// and version: a row that was copied elsewhere does not open.
//
// # Which key
//
// Each wrapped key names the KEK that wrapped it. A Vault has one KEK that wraps new data keys and
// any number of others that only open (Ring). It seals with the newest data key that one of them
// opens, and creates one if there is none, so that a new key file seals new accounts even if the
// old file is lost. Seal reads the stored keys each time, and Open when it sees a version for the
// first time, so that brokers use new keys while they run. Unwrapped data keys are cached, so that
// a key service is called once for each, and may be unavailable afterwards.
//
// A secret that is yet to be obtained, and is obtained only once, such as a rotated refresh token,
// is sealed by a Sealer that was made before.
//
// # Rotation
//
// A data key is current, then retired by the next one of its workspace, then removed when no row
// uses it any more. Package rotation does that. The versions of a workspace's keys only go up. To
// change the KEK, every broker must have the new one among its others before one of them wraps
// with it, and the old one until nothing is wrapped by it.
//
// Plaintext exists in memory only, as a Secret, which prints as [redacted] however it is printed.
//
// A Vault is safe for concurrent use. If it dies between storing a new data key and the account
// sealed with it, an unused key remains, which is harmless.
package vault
