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
	path   string
	log    *slog.Logger
	turn   chan struct{} // one of this process waits for the lock at a time
	record record        // whoever has the lock writes to it

	mu   sync.Mutex // guards last
	last *kept
}

// kept is what was read or written last. The file stays open, so that no other one can
// get its inode and be taken for it.
type kept struct {
	file  *os.File
	info  fs.FileInfo
	state *State
}

// ErrDamaged is in the chain of an error about a file that was damaged and is not put
// right yet.
var ErrDamaged = errors.New("the accounts file is damaged")

// Open returns the file at a path, which need not be there: its folder is made. Mode and
// .gitignore are put right; mine are other files that .gitignore is to name where they are
// in the same folder. One that cannot be used is an error that says what to do; of one that
// is damaged, View and Update say so, until it is put right. The caller calls Close.
func Open(ctx context.Context, path string, log *slog.Logger, mine ...string) (*File, error) {
	if path == "" || strings.ContainsFunc(path, unicode.IsControl) {
		return nil, fmt.Errorf("accounts file: %q is not a path", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("accounts file: %w", err)
	}
	path = resolve(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the accounts file: %w: name a file elsewhere", err)
	}
	// Where nothing can be written the file can still be read, and an Update says it.
	f := &File{path: path, log: log, turn: make(chan struct{}, 1)}
	f.record = record{path: path + ".audit", create: f.create}
	if err := f.ignore(mine); err != nil && !denied(err) {
		return nil, fmt.Errorf("keep the accounts file out of repositories: %w", err)
	}
	if _, err := f.View(ctx); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	return f, errors.Join(f.private(ctx, f.path), f.private(ctx, f.record.path))
}

// resolve returns where a path leads: a link would be replaced by the first change. It
// need not lead anywhere: what was set aside is looked for where the file was.
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

// create opens a file beside the accounts file, and makes it where it is not there: for whom
// the accounts file is for, whoever this process is.
func (f *File) create(path string, flag int) (file *os.File, made bool, err error) {
	file, err = os.OpenFile(path, flag|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		file, err = openRegular(path, flag|os.O_CREATE) // what a link leads to may have to be made
		return file, false, err
	}
	if err == nil && owner.Like(file, f.path) != nil { // it is not there, or a change of it will be refused
		owner.LikeFolder(file, filepath.Dir(f.path))
	}
	return file, true, err
}

func denied(err error) bool { return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) }

// Path returns where the file is.
func (f *File) Path() string { return f.path }

// Close lets go of the file. What was updated is in it already. Of nil it does nothing.
func (f *File) Close() {
	if f != nil {
		f.keep(nil)
	}
}

// private takes everybody else's rights to a file away, the accounts file or its audit.
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
		f.log.WarnContext(ctx, "others can read the accounts, or their audit, and the mode cannot be put right: run chmod 600 on the file", "file", path, "error", err)
	case err != nil:
		return fmt.Errorf("put the mode of %s right: %w", path, err)
	default:
		f.log.WarnContext(ctx, "others could read the accounts, or their audit: the mode is put right", "file", path, "mode", info.Mode().Perm().String())
	}
	return nil
}

// View returns the file as it is now. The State is not to be changed, and stays as it is
// when the file changes. Its errors are faults, Unavailable where trying again may help.
func (f *File) View(ctx context.Context) (*State, error) {
	if s := f.known(); s != nil {
		return s, nil
	}
	k, _, err := f.read(ctx)
	if damage(err) != nil {
		return f.viewLocked(ctx)
	}
	if err != nil {
		return nil, err
	}
	f.keep(k)
	return k.state, nil
}

// viewLocked looks once more at a file that was damaged, with the lock: nobody replaces it
// meanwhile by a good one that would be set aside in its place.
func (f *File) viewLocked(ctx context.Context) (*State, error) {
	unlock, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k, _, err := f.load(ctx)
	if err != nil {
		return nil, err
	}
	f.keep(k)
	return k.state, nil
}

// Update changes the file: fn gets what is in it now, as its own, and what it leaves there
// is durable when Update returns nil. With an error of fn, which is returned, and where fn
// changes nothing, nothing is written. fn may call View, and not Update.
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
		// Whoever sealed it was too slow: the key was replaced, and removed, meanwhile.
		return fault.New(fault.Unavailable, "the key was replaced meanwhile: try again")
	}
	undo, err := f.note(k.state)
	if err != nil {
		return err
	}
	placed, err := f.commit(k.state, before)
	if err != nil && !placed {
		undo()
	}
	return err
}

// commit replaces the file, unless a State is what it holds. With an error it may be in
// its place all the same.
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

// settled is how long a file that does not parse must not have been written to for it to be
// damaged: who puts one back with cp writes it in its place, and is not done yet. Whoever
// goes on writing to it is waited for no longer than 3 s.
const (
	settled = 300 * time.Millisecond
	looks   = 100
)

// load reads the file with the lock held, and sets it aside if it is damaged: then it
// returns what becomes of one that is lost.
func (f *File) load(ctx context.Context) (k *kept, text []byte, err error) {
	k, text, err = f.read(ctx)
	for n := 0; n < looks && damage(err) != nil && f.isFresh() && pause(ctx, settled/10) == nil; n++ {
		k, text, err = f.read(ctx)
	}
	why := damage(err)
	if why == nil {
		return k, text, err
	}
	aside, err := f.setAside()
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Conflict, fmt.Sprintf("the accounts file %s is damaged (%v) and could not be kept aside: move it away", f.path, why))
	}
	f.log.ErrorContext(ctx, "the accounts file was damaged and is kept aside: no account is used until it is mended, or taken from a backup, and put back",
		"file", f.path, "kept_as", aside, "error", why)
	f.keep(nil)
	return f.absent(ctx)
}

func (f *File) isFresh() bool {
	info, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	age := time.Since(info.ModTime())
	return age >= 0 && age < settled
}

// absent is about a file that is not there. It holds nothing, unless one was set aside:
// then nobody knows what there is, and somebody else's credential must not be used in the
// place of one that is in it.
func (f *File) absent(ctx context.Context) (*kept, []byte, error) {
	aside, err := f.asides()
	switch {
	case err != nil:
		return nil, nil, f.unreadable(err)
	case len(aside) == 0:
		k := &kept{state: &State{}}
		text, err := k.state.encode() // as if it were there: it is made for something that is to be in it
		return k, text, err
	}
	all := aside[len(aside)-1]
	if len(aside) > 1 {
		all = f.path + damagedName + "…"
	}
	err = fault.Wrap(ErrDamaged, fault.Conflict, fmt.Sprintf("the accounts file %s was damaged and is kept aside as %s: mend that, or take a backup, and put it back as %s; to go on with no account in it, move %s elsewhere",
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

// damagedName is between the name of a file and the time at which it was found damaged.
const damagedName = ".damaged-"

// asides returns what was set aside, the last one last.
func (f *File) asides() (all []string, err error) {
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

// damagedError is about a file that parses in no version.
type damagedError struct{ error }

func damage(err error) error {
	if d, ok := errors.AsType[damagedError](err); ok {
		return d.error
	}
	return nil
}

// read reads the file.
func (f *File) read(ctx context.Context) (*kept, []byte, error) {
	file, err := openRegular(f.path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return f.absent(ctx)
	}
	if err != nil {
		return nil, nil, f.unreadable(err)
	}
	k := &kept{file: file}
	text, err := k.text()
	if err != nil {
		k.close()
		return nil, nil, f.unreadable(err)
	}
	if k.state, err = decode(text); err != nil {
		k.close()
		if errors.Is(err, errNewer) {
			return nil, nil, fault.Wrap(err, fault.Conflict, fmt.Sprintf("the accounts file %s cannot be used: %v; use that version here too, or a later one, or name another file", f.path, err))
		}
		return nil, nil, damagedError{err}
	}
	return k, text, nil
}

func (k *kept) text() (text []byte, err error) {
	if k.info, err = k.file.Stat(); err != nil {
		return nil, err
	}
	if k.info.Size() > maxFile {
		return nil, fmt.Errorf("it is larger than %d MB", maxFile>>20)
	}
	return io.ReadAll(io.LimitReader(k.file, maxFile+1))
}

func (k *kept) close() {
	if k != nil && k.file != nil {
		_ = k.file.Close() // it was only read, or is synced
		k.file = nil
	}
}

func (f *File) unreadable(err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be read: %v", f.path, err))
}

// known returns what is remembered of the file, if it still is the same one.
func (f *File) known() *State {
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

// keep remembers a file that was read or written; of one that is not there, nothing.
func (f *File) keep(k *kept) {
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
	k := &kept{state: s}
	placed, err = f.replace(k, text)
	if err != nil {
		k.close()
		return placed, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be written: %v", f.path, err))
	}
	f.keep(k)
	return true, nil
}

func (f *File) replace(k *kept, text []byte) (placed bool, err error) {
	tmp := f.path + ".tmp"
	// What somebody left when they died may be in its place, or a link to elsewhere.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if k.file, err = os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return false, err
	}
	err = owner.Like(k.file, f.path)
	if errors.Is(err, fs.ErrNotExist) {
		owner.LikeFolder(k.file, filepath.Dir(f.path))
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

// setAside renames the file so that it hides no other one, with the lock held, and
// returns its name.
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

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
