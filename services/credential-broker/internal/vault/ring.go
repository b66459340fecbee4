package vault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// RingConfig names a broker's KEKs.
type RingConfig struct {
	// File and URL say where the key is that seals: at the URL if both are given; the file, if
	// it exists, then opens what it has sealed.
	File, URL string
	// Later delays creating the file until something is sealed with it.
	Later bool
	// Others are files and URLs of keys that open what they have sealed.
	Others []string
}

// Ring is a broker's KEKs: New takes them.
type Ring struct {
	KEK    KEK
	Others []KEK
}

// OpenRing opens KEKs. Only File is created if it is missing, and only without a URL. The caller
// closes the Ring. The errors hold no key.
func OpenRing(ctx context.Context, c RingConfig) (r Ring, err error) {
	if r.KEK, err = openSealing(ctx, c); err != nil {
		return Ring{}, err
	}
	if r.Others, err = openOthers(ctx, c); err != nil {
		return Ring{}, errors.Join(err, r.Close())
	}
	return r, nil
}

// openOthers returns the keys that it has opened, also with an error.
func openOthers(ctx context.Context, c RingConfig) (all []KEK, err error) {
	for i, name := range c.Others {
		k, err := openOther(ctx, name)
		if err != nil {
			return all, fmt.Errorf("other key %d: %w", i+1, err)
		}
		all = append(all, k)
	}
	if c.URL != "" && c.File != "" {
		k, err := readKeyFile(c.File)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return all, err
		}
		if err == nil {
			all = append(all, k)
		}
	}
	return all, nil
}

func openSealing(ctx context.Context, c RingConfig) (KEK, error) {
	if c.URL != "" {
		k, err := OpenURL(ctx, c.URL)
		if err != nil {
			return nil, err
		}
		return k, nil
	}
	open := OpenFile
	if c.Later {
		open = OpenFileLater
	}
	k, err := open(c.File)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func openOther(ctx context.Context, name string) (KEK, error) {
	if strings.Contains(name, "://") {
		return OpenURL(ctx, name)
	}
	k, err := readKeyFile(name)
	if err != nil && strings.Contains(name, ":") { // not quoted: it may be a URL without its slashes, with a key in it
		return nil, errors.New("it is neither the path of a key file nor a URL such as hashivault://name")
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no key file %s", name)
	}
	return k, err
}

// Close closes the keys that need it.
func (r Ring) Close() error {
	var errs []error
	for _, k := range append([]KEK{r.KEK}, r.Others...) {
		if c, ok := k.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
