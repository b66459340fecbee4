// Package kms links the drivers of key services, for a key-encryption key at a URL. It is
// imported for its effect: the drivers register with gocloud.dev/secrets, through which the
// broker opens such URLs.
//
//	hashivault://<key>                    HashiCorp Vault's transit engine (VAULT_SERVER_URL, VAULT_SERVER_TOKEN)
//	awskms://<key id or alias>?region=…   AWS KMS, with the environment's credentials
//	gcpkms://projects/…/cryptoKeys/<key>  GCP KMS, likewise
//	base64key://<32 bytes>                a key in the setting itself: for tests
//
// The drivers make up a quarter of the broker's program. The broker and signalbox import them;
// no other program or test does.
package kms

import (
	_ "gocloud.dev/secrets/awskms"       // awskms://
	_ "gocloud.dev/secrets/gcpkms"       // gcpkms://
	_ "gocloud.dev/secrets/hashivault"   // hashivault://
	_ "gocloud.dev/secrets/localsecrets" // base64key://
)
