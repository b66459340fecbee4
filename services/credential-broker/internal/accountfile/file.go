package accountfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/owner"
)

const maxFile = 16 << 20

// File is the file as one process works on it. It is safe for concurrent use.
type File struct {
	path  string
	log   *slog.Logger
	slot  chan struct{} // one caller of this process waits for the lock at a time
	audit auditLog      // written with the lock held

	mu   sync.Mutex // guards last
	last *snapshot
}

// snapshot is what was read or written last. The file stays open, so that no other file can
// get its inode and be taken for it.
type snapshot struct {
	file  *os.File
	info  fs.FileInfo
	state *State
}

// ErrDamaged is in the chain of an error about a file that was damaged and has not been
// restored yet.
var ErrDamaged = errors.New("the accounts file is damaged")

// Open returns the file at a path. The file need not exist; its folder is created. It corrects
// the mode and .gitignore, which is also to name other files that are in the same folder. A
// file that cannot be used is an error that says what to do; for a damaged one View and Update
// return that error, until it is restored. The caller calls Close.
func Open(ctx context.Context, path string, log *slog.Logger, other ...string) (*File, error) {
	if path == "" || strings.ContainsFunc(path, unicode.IsControl) {
		return nil, fmt.Errorf("accounts file: %q is not a path", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("accounts file: %w", err)
	}
	path = resolve(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the accounts file: %w: choose another path", err)
	}
	// If nothing can be written the file can still be read, and Update returns the error.
	f := &File{path: path, log: log, slot: make(chan struct{}, 1)}
	f.audit = auditLog{path: path + ".audit", create: f.create}
	if err := f.ignore(other); err != nil && !denied(err) {
		return nil, fmt.Errorf("keep the accounts file out of repositories: %w", err)
	}
	if _, err := f.View(ctx); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	return f, errors.Join(f.private(ctx, f.path), f.private(ctx, f.audit.path))
}

// resolve follows links, which the first change would replace. The target need not exist:
// damaged files are looked for in its folder.
func resolve(path string) string {
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return path
}

// create opens a file beside the accounts file, or creates it, with the owner of the accounts
// file.
func (f *File) create(path string, flag int) (file *os.File, created bool, err error) {
	file, err = os.OpenFile(path, flag|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		file, err = openRegular(path, flag|os.O_CREATE) // the target of a link may have to be created
		return file, false, err
	}
	if err == nil && owner.Copy(file, f.path) != nil { // it does not exist, or changing it will be refused
		owner.CopyFolder(file, filepath.Dir(f.path))
	}
	return file, true, err
}

func denied(err error) bool { return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) }

// Path returns where the file is.
func (f *File) Path() string { return f.path }

// Close releases the file, which has all updates already. On nil it does nothing.
func (f *File) Close() {
	if f != nil {
		f.keep(nil)
	}
}

// private removes the permissions of others from a file, the accounts file or its audit.
func (f *File) private(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	switch {
	case denied(err):
		f.log.WarnContext(ctx, "others can read the accounts or their audit, and the file mode cannot be corrected: run chmod 600 on the file", "file", path, "error", err)
	case err != nil:
		return fmt.Errorf("correct the mode of %s: %w", path, err)
	default:
		f.log.WarnContext(ctx, "others could read the accounts or their audit: the file mode has been corrected", "file", path, "mode", info.Mode().Perm().String())
	}
	return nil
}

// View returns the file as it is now. The State is not to be changed, and stays the same when
// the file changes. Its errors are faults, Unavailable if trying again may help.
func (f *File) View(ctx context.Context) (*State, error) {
	if s := f.unchanged(); s != nil {
		return s, nil
	}
	k, _, err := f.read(ctx)
	if damage(err) != nil {
		// load sets it aside. With the lock nobody can replace it by a good one meanwhile,
		// which would be set aside instead.
		unlock, lockErr := f.lock(ctx)
		if lockErr != nil {
			return nil, lockErr
		}
		defer unlock()
		k, _, err = f.load(ctx)
	}
	if err != nil {
		return nil, err
	}
	f.keep(k)
	return k.state, nil
}

// Update changes the file: fn gets its present content, and what fn makes of that is durable
// when Update returns nil. If fn returns an error, which Update returns, or changes nothing,
// nothing is written. fn may call View, and not Update.
func (f *File) Update(ctx context.Context, fn func(*State) error) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	k, before, err := f.load(ctx)
	if err != nil {
		return err
	}
	defer k.close()
	orphans := k.state.orphans()
	if err := fn(k.state); err != nil {
		return err
	}
	if k.state.orphans() > orphans {
		// Something was sealed with a key that has been replaced and removed meanwhile.
		return fault.New(fault.Unavailable, "the key was replaced meanwhile: try again")
	}
	undo, err := f.appendAudit(k.state)
	if err != nil {
		return err
	}
	placed, err := f.commit(k.state, before)
	if err != nil && !placed {
		undo()
	}
	return err
}

// commit replaces the file if its content changes. After an error it may have been replaced all
// the same.
func (f *File) commit(s *State, before []byte) (placed bool, err error) {
	text, err := s.encode()
	if err != nil {
		return false, fmt.Errorf("encode the accounts file: %w", err)
	}
	if bytes.Equal(text, before) {
		return false, nil
	}
	if len(text) > maxFile {
		return false, fault.New(fault.Conflict, "the accounts file would be larger than %d MB: use a database (DATABASE_URL)", maxFile>>20)
	}
	return f.write(s, text)
}

// A file that does not parse is damaged once it has not been written to for settleTime: somebody
// may be restoring it with cp, which writes in place. That is waited for up to 3 s.
const (
	settleTime  = 300 * time.Millisecond
	settleReads = 100
)

// load reads the file with the lock held. A damaged one is set aside, and is then absent.
func (f *File) load(ctx context.Context) (k *snapshot, text []byte, err error) {
	k, text, err = f.read(ctx)
	for n := 0; n < settleReads && damage(err) != nil && f.justWritten() && pause(ctx, settleTime/10) == nil; n++ {
		k, text, err = f.read(ctx)
	}
	why := damage(err)
	if why == nil {
		return k, text, err
	}
	aside, err := f.setAside()
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Conflict, fmt.Sprintf("the accounts file %s is damaged (%v) and could not be set aside: move it away", f.path, why))
	}
	f.log.ErrorContext(ctx, "the accounts file was damaged and has been set aside: no account is used until it is repaired or restored from a backup",
		"file", f.path, "kept_as", aside, "error", why)
	f.keep(nil)
	return f.absent(ctx)
}

func (f *File) justWritten() bool {
	info, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	age := time.Since(info.ModTime())
	return age >= 0 && age < settleTime
}

// absent returns what a file that does not exist holds: nothing, unless a damaged one was set
// aside. In that case the accounts are unknown, and requests must not go out with others.
func (f *File) absent(ctx context.Context) (*snapshot, []byte, error) {
	aside, err := f.damagedFiles()
	switch {
	case err != nil:
		return nil, nil, f.unreadable(err)
	case len(aside) == 0:
		k := &snapshot{state: &State{}}
		text, err := k.state.encode() // an Update that adds nothing creates no file
		return k, text, err
	}
	all := aside[len(aside)-1]
	if len(aside) > 1 {
		all = f.path + damagedName + "…"
	}
	err = fault.Wrap(ErrDamaged, fault.Conflict, fmt.Sprintf("the accounts file %s was damaged and has been set aside as %s: repair it, or use a backup, and move it to %s; to start over without accounts, move %s elsewhere",
		f.path, aside[len(aside)-1], f.path, all))
	f.mu.Lock()
	had := f.last != nil
	f.mu.Unlock()
	if had { // another process has set it aside
		f.keep(nil)
		f.log.ErrorContext(ctx, "accounts cannot be used", "error", err)
	}
	return nil, nil, err
}

// damagedName is between the name of a file and the time at which it was set aside.
const damagedName = ".damaged-"

// damagedFiles returns the files that were set aside, the latest last.
func (f *File) damagedFiles() (all []string, err error) {
	folder := filepath.Dir(f.path)
	names, err := os.ReadDir(folder) // sorted
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, n := range names {
		if strings.HasPrefix(n.Name(), filepath.Base(f.path)+damagedName) {
			all = append(all, filepath.Join(folder, n.Name()))
		}
	}
	return all, err
}

// damagedError is about a file that does not parse in any version.
type damagedError struct{ error }

func damage(err error) error {
	if d, ok := errors.AsType[damagedError](err); ok {
		return d.error
	}
	return nil
}

// read reads the file.
func (f *File) read(ctx context.Context) (*snapshot, []byte, error) {
	file, err := openRegular(f.path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return f.absent(ctx)
	}
	if err != nil {
		return nil, nil, f.unreadable(err)
	}
	k := &snapshot{file: file}
	text, err := k.text()
	if err != nil {
		k.close()
		return nil, nil, f.unreadable(err)
	}
	if k.state, err = decode(text); err != nil {
		k.close()
		if errors.Is(err, errNewer) {
			return nil, nil, fault.Wrap(err, fault.Conflict, fmt.Sprintf("the accounts file %s cannot be used: %v; use that version or a later one here too, or choose another file", f.path, err))
		}
		return nil, nil, damagedError{err}
	}
	return k, text, nil
}

func (k *snapshot) text() (text []byte, err error) {
	if k.info, err = k.file.Stat(); err != nil {
		return nil, err
	}
	if k.info.Size() > maxFile {
		return nil, fmt.Errorf("it is larger than %d MB", maxFile>>20)
	}
	return io.ReadAll(io.LimitReader(k.file, maxFile+1))
}

func (k *snapshot) close() {
	if k != nil && k.file != nil {
		_ = k.file.Close() // it was only read, or is synced
		k.file = nil
	}
}

func (f *File) unreadable(err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be read: %v", f.path, err))
}

// unchanged returns the last State, if the file is still the same.
func (f *File) unchanged() *State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return nil
	}
	now, err := os.Stat(f.path)
	if err != nil || !os.SameFile(now, f.last.info) || now.Size() != f.last.info.Size() || !now.ModTime().Equal(f.last.info.ModTime()) {
		return nil
	}
	return f.last.state
}

// keep remembers a file that was read or written; nothing if it does not exist.
func (f *File) keep(k *snapshot) {
	if k != nil && k.file == nil {
		k = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last.close()
	f.last = k
}

// write replaces the file, with the lock held.
func (f *File) write(s *State, text []byte) (placed bool, err error) {
	k := &snapshot{state: s}
	placed, err = f.replace(k, text)
	if err != nil {
		k.close()
		return placed, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be written: %v", f.path, err))
	}
	f.keep(k)
	return true, nil
}

func (f *File) replace(k *snapshot, text []byte) (placed bool, err error) {
	tmp := f.path + ".tmp"
	// A process that died may have left one, and it may be a link to elsewhere.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if k.file, err = os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return false, err
	}
	err = owner.Copy(k.file, f.path)
	if errors.Is(err, fs.ErrNotExist) {
		owner.CopyFolder(k.file, filepath.Dir(f.path))
		err = nil
	}
	if err == nil {
		_, err = k.file.Write(text)
	}
	if err == nil {
		err = k.file.Sync()
	}
	if err == nil {
		k.info, err = k.file.Stat()
	}
	if err == nil {
		err = os.Rename(tmp, f.path)
	}
	if err != nil {
		_ = os.Remove(tmp) // it was never in its place
		return false, err
	}
	return true, syncFolder(filepath.Dir(f.path))
}

// setAside renames the file, with the lock held, without replacing another one, and returns its
// new name.
func (f *File) setAside() (string, error) {
	name := f.path + damagedName + time.Now().UTC().Format("20060102T150405Z")
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			break
		}
		name = strings.TrimSuffix(name, "."+strconv.Itoa(n-1)) + "." + strconv.Itoa(n)
	}
	if err := os.Rename(f.path, name); err != nil {
		return "", err
	}
	return name, errors.Join(os.Chmod(name, 0o600), syncFolder(filepath.Dir(f.path)))
}

// openRegular opens a file without waiting, which a pipe in its place would require, and refuses
// anything else than a regular file.
func openRegular(path string, flag int) (*os.File, error) {
	file, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
