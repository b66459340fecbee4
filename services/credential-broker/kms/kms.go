// Package kms lets a program take the key-encryption key from a key service by URL.
// Importing it for its effect is all there is to it: the drivers name themselves to
// gocloud.dev/secrets, through which the broker opens such URLs.
//
//	hashivault://<key>                    HashiCorp Vault's transit engine (VAULT_SERVER_URL, VAULT_SERVER_TOKEN)
//	awskms://<key id or alias>?region=…   AWS KMS, with the environment's credentials
//	gcpkms://projects/…/cryptoKeys/<key>  GCP KMS, likewise
//	base64key://<32 bytes>                a key in the setting itself: for tests
//
// It is a package of its own because the drivers make up a quarter of the broker's
// program: those that need them, the broker and signalbox, link them, and no test or
// other program does.
package kms

import (
	_ "gocloud.dev/secrets/awskms"       // awskms://
	_ "gocloud.dev/secrets/gcpkms"       // gcpkms://
	_ "gocloud.dev/secrets/hashivault"   // hashivault://
	_ "gocloud.dev/secrets/localsecrets" // base64key://
)
