// Package vault seals secrets, so that tables, backups and logs hold none.
//
// Two layers of keys: every workspace has data keys, which seal its accounts'
// fields, and each data key is stored wrapped by the operator's key-encryption
// key (KEK), which is in a file of its own and never in the database. The
// operator's shared accounts belong to the zero workspace and have data keys of
// their own.
//
// Everything is AES-256-GCM with a random nonce in front. A sealed field is bound
// by associated data to its workspace, account, field and key version, and a
// wrapped data key to its workspace and version: a row that was copied elsewhere
// does not open. Each wrapped key names the KEK that wrapped it; a Vault seals
// with the newest data key of its own KEK and makes one where there is none, so
// that a new key file seals new accounts even where the old file is lost.
//
// Plaintext exists in memory only, as a Secret, which prints as [redacted]
// however it is printed.
//
// A Vault caches unwrapped data keys and is safe for concurrent use. If it dies
// between storing a new data key and the account sealed with it, an unused key
// remains, which is harmless.
package vault
