package vault

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"

	"signalbox.dev/pkg/fault"
)

// local is the scheme of a key in the URL itself.
const local = "base64key"

// serviceTimeout bounds one call of a key service.
const serviceTimeout = 5 * time.Second

// ServiceKey is a KEK that never leaves a key service.
type ServiceKey struct {
	keeper *secrets.Keeper
	scheme string
	id     string
}

// OpenURL returns the key at a URL, whose scheme must be one that the program has a driver for
// (package kms). The caller closes the key. The service is not called yet, and no error holds
// the URL, which may hold a key. A key is identified by its URL: another spelling is another key.
func OpenURL(ctx context.Context, text string) (*ServiceKey, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("it is not the URL of a key: use a URL such as hashivault://signalbox or awskms://alias/signalbox?region=eu-west-1")
	}
	if err := checkServer(u.Scheme); err != nil {
		return nil, err
	}
	mux := secrets.DefaultURLMux()
	if !mux.ValidKeeperScheme(u.Scheme) {
		return nil, fmt.Errorf("there is no key service %s: use one of %s", u.Scheme, strings.Join(mux.KeeperSchemes(), ", "))
	}
	if u.Scheme == local && u.Host == "" {
		return nil, errors.New("base64key:// without a key would be a different key at each start: add one")
	}
	keeper, err := mux.OpenKeeperURL(ctx, u)
	if err != nil && u.Scheme == local {
		return nil, errors.New("base64key:// needs 32 bytes in base64")
	}
	if err != nil {
		return nil, fmt.Errorf("open the %s key: %s", u.Scheme, strings.NewReplacer(text, "its URL", u.String(), "its URL").Replace(err.Error()))
	}
	return &ServiceKey{keeper: keeper, scheme: u.Scheme, id: u.Scheme + "-" + hashOf("id", []byte(text))}, nil
}

// checkServer refuses the address of a HashiCorp Vault that is no URL: the driver would quote
// it, and it may hold a password.
func checkServer(scheme string) error {
	if scheme != "hashivault" {
		return nil
	}
	for _, variable := range []string{"VAULT_SERVER_URL", "VAULT_ADDR"} { // the driver's
		if _, err := url.Parse(os.Getenv(variable)); err != nil {
			return fmt.Errorf("%s is not a URL: use a URL such as https://vault.example:8200", variable)
		}
	}
	return nil
}

// ID names the key.
func (k *ServiceKey) ID() string { return k.id }

// String hides the URL.
func (k *ServiceKey) String() string { return "credential key " + k.id }

// Close releases the service.
func (k *ServiceKey) Close() error { return k.keeper.Close() }

// Wrap seals a data key. Key services take no associated data, so a hash of it is sealed with the
// key.
func (k *ServiceKey) Wrap(ctx context.Context, key, bound []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	sum := sha256.Sum256(bound)
	wrapped, err := k.keeper.Encrypt(ctx, append(append(make([]byte, 0, len(key)+len(sum)), key...), sum[:]...))
	if err != nil {
		return nil, k.failed("seals", err)
	}
	return wrapped, nil
}

// Unwrap opens what Wrap sealed. If the service does not open it before its timeout, and what is
// wrapped may be intact, the error is ErrUnavailable.
func (k *ServiceKey) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	both, err := k.keeper.Decrypt(limited, wrapped)
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, k.failed("decrypts", err)
	}
	sum := sha256.Sum256(bound)
	if len(both) < len(sum) || subtle.ConstantTimeCompare(both[len(both)-len(sum):], sum[:]) != 1 {
		return nil, fmt.Errorf("with key %s: %w", k.id, ErrDamaged)
	}
	return both[:len(both)-len(sum)], nil
}

// failed tells damage from what may work later: an error that is not clear is taken for a
// failure of the service.
func (k *ServiceKey) failed(what string, err error) error {
	if k.scheme == local || gcerrors.Code(err) == gcerrors.InvalidArgument {
		return fmt.Errorf("with key %s: %w", k.id, ErrDamaged)
	}
	return fault.Wrap(fmt.Errorf("with key %s: %w", k.id, err), fault.Unavailable,
		"the key service that "+what+" stored credentials is unavailable: try again in a moment")
}
