package vault

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"signalbox.dev/services/credential-broker/internal/owner"
)

// A key file is one line: the prefix, the key in base64url, a colon, and the first bytes of a
// hash over the key, by which a damaged file is told from another key.
const (
	filePrefix  = "signalbox-credential-key-v1:"
	maxKeyFile  = 4 << 10
	checkLength = 8
)

// FileKey is a KEK in a local file.
type FileKey struct {
	path string

	mu      sync.Mutex // guards what follows
	id      string
	aead    cipher.AEAD
	pending []byte // the key, until it is in its file
}

// OpenFile reads the key file at path. If there is none it creates one, mode 0600, whole or not
// at all, also when several brokers start at once. A file that is damaged, or that others may
// read or write, is refused with what to do, and never changed.
func OpenFile(path string) (*FileKey, error) {
	k, err := OpenFileLater(path)
	if err == nil {
		_, err = k.create()
	}
	return k, err
}

// NewFile creates a key file at path, where there must be nothing.
func NewFile(path string) (*FileKey, error) {
	err := createKeyFile(path, newKey())
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s: the file exists, and was not changed", path)
	}
	if err != nil {
		return nil, fmt.Errorf("create the credential key file %s: %w", path, err)
	}
	return readKeyFile(path)
}

// OpenFileLater is OpenFile, but a missing file is only created when the key wraps something
// for the first time; until then nothing opens with it. If another process creates the file
// meanwhile, this becomes the key in it.
func OpenFileLater(path string) (*FileKey, error) {
	if path == "" {
		return nil, errors.New("credential key file: no path is set")
	}
	k, err := readKeyFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	key := newKey()
	if k, err = newFileKey(path, key); err == nil {
		k.pending = key
	}
	return k, err
}

// Pending returns the path of a file that has not been created yet.
func (k *FileKey) Pending() (path string, pending bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reread()
	return k.path, k.pending != nil
}

// reread takes over a file that another process has created. An error of that file is reported
// when the key is needed. The mutex is held.
func (k *FileKey) reread() {
	if k.pending == nil {
		return
	}
	if other, err := readKeyFile(k.path); err == nil {
		k.id, k.aead, k.pending = other.id, other.aead, nil
	}
}

// create creates the file if it is pending, and returns what seals: if another process was
// faster, with its key.
func (k *FileKey) create() (cipher.AEAD, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == nil {
		return k.aead, nil
	}
	if err := createKeyFile(k.path, k.pending); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create the credential key file %s: %w", k.path, err)
	}
	other, err := readKeyFile(k.path)
	if err != nil {
		return nil, err
	}
	k.id, k.aead, k.pending = other.id, other.aead, nil
	return k.aead, nil
}

func newFileKey(path string, key []byte) (*FileKey, error) {
	aead, err := newAEAD(key)
	if err != nil {
		return nil, fmt.Errorf("credential key file %s: %w", path, err)
	}
	return &FileKey{path: path, id: hashOf("id", key), aead: aead}, nil
}

func newKey() []byte {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: crypto/rand
	return key
}

func readKeyFile(path string) (*FileKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("credential key file: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("credential key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("credential key file %s is not a regular file: use a regular file, or a path that does not exist yet", path)
	}
	// The group may read it: orchestrators hand files to a service in this way.
	if info.Mode().Perm()&0o027 != 0 {
		return nil, fmt.Errorf("credential key file %s can be read or written by others (mode %04o): run chmod 600 on it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("read credential key file %s: %w", path, err)
	}
	key, err := decodeKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("credential key file %s %w: put the file back from a backup; without it the stored credentials cannot be opened. To start over, move the file away, restart, and add the accounts again", path, err)
	}
	return newFileKey(path, key)
}

// createKeyFile writes a temporary file and links it to path. The link fails with fs.ErrExist
// if another broker was first; its key counts then.
func createKeyFile(path string, key []byte) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".credential-key-*") // mode 0600
	if err != nil {
		return err
	}
	owner.CopyFolder(tmp, dir)
	defer func() { _ = os.Remove(tmp.Name()) }() // otherwise a file remains that nobody reads
	_, err = tmp.WriteString(encodeKey(key))
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	linked := os.Link(tmp.Name(), path)
	if linked != nil && !errors.Is(linked, fs.ErrExist) {
		return linked
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return err
	}
	return linked
}

func encodeKey(key []byte) string {
	return filePrefix + base64.RawURLEncoding.EncodeToString(key) + ":" + hashOf("check", key) + "\n"
}

func decodeKey(text string) ([]byte, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty")
	}
	body, ok := strings.CutPrefix(strings.TrimSpace(text), filePrefix)
	if !ok {
		return nil, errors.New("is not a credential key file")
	}
	encoded, check, _ := strings.Cut(body, ":")
	key, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(key) != keySize || subtle.ConstantTimeCompare([]byte(check), []byte(hashOf("check", key))) != 1 {
		return nil, errors.New("is damaged")
	}
	return key, nil
}

// hashOf names a key for one purpose without revealing it.
func hashOf(purpose string, key []byte) string {
	sum := sha256.Sum256(append([]byte("signalbox.credential.v1 "+purpose+" "), key...))
	return hex.EncodeToString(sum[:checkLength])
}

// ID names the key.
func (k *FileKey) ID() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reread()
	return k.id
}

// Wrap seals a data key.
func (k *FileKey) Wrap(_ context.Context, key, bound []byte) ([]byte, error) {
	aead, err := k.create()
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, key, bound), nil
}

// Unwrap opens what Wrap sealed.
func (k *FileKey) Unwrap(_ context.Context, wrapped, bound []byte) ([]byte, error) {
	k.mu.Lock()
	aead := k.aead
	k.mu.Unlock()
	key, err := aead.Open(nil, nil, wrapped, bound)
	if err != nil {
		return nil, fmt.Errorf("with credential key file %s: %w", k.path, ErrDamaged)
	}
	return key, nil
}

// String hides the key.
func (k *FileKey) String() string { return "credential key " + k.ID() }
