package pgd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// nobody is the user and group that Postgres runs as when we are root.
const nobody = 65534

// user is the user that runs Postgres's programs.
type user struct {
	attr func() *syscall.SysProcAttr
	uid  int // the owner of the files, outside the namespace
}

// chooseUser returns a user other than root who can run the programs in bin with a data
// folder in parent.
func chooseUser(ctx context.Context, bin, parent string) (user, error) {
	if os.Geteuid() != 0 {
		return user{attr: ownGroup, uid: os.Geteuid()}, nil
	}
	asNobody := user{uid: nobody, attr: func() *syscall.SysProcAttr {
		a := ownGroup()
		a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		return a
	}}
	err := asNobody.probe(ctx, bin, parent)
	if err == nil {
		return asNobody, nil
	}
	asRoot := user{uid: 0, attr: namespaced}
	if nsErr := asRoot.probe(ctx, bin, parent); nsErr != nil {
		return user{}, fmt.Errorf("PostgreSQL does not run as root, and as uid %d it cannot reach its files: %s. "+
			"Or start as an ordinary user, or set DATABASE_URL (a user namespace, which would avoid this, is not available: %v)", nobody, accessHint(err, bin, parent), nsErr)
	}
	return asRoot, nil
}

// accessHint says what to do so that other users reach the folders. It names the folders on the
// way that they may not enter, or else returns the attempt's error.
func accessHint(err error, dirs ...string) string {
	var closed []string
	for _, dir := range dirs {
		for ; ; dir = filepath.Dir(dir) {
			if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&1 == 0 && !slices.Contains(closed, dir) {
				closed = append(closed, dir)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if len(closed) == 0 {
		return err.Error()
	}
	slices.Sort(closed)
	all := strings.Join(closed, " ")
	return fmt.Sprintf("other users may not enter %s. Allow it (chmod o+x %s), or move the checkout and the data folder elsewhere", all, all)
}

// ownGroup protects the server from a terminal's Ctrl-C: we end it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// probe reports whether the programs run and the folder can be entered.
func (u user) probe(ctx context.Context, bin, parent string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `cd "$1" && exec "$2" --version`, "sh", parent, filepath.Join(bin, "postgres"))
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.SysProcAttr = u.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// chown makes the user own the folder and its content, unless it does already. The folder
// itself comes last, so that an interrupted run is repeated.
func (u user) chown(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == u.uid {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s belongs to another user: start as that user, or choose another folder", dir)
	}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return os.Lchown(path, u.uid, u.uid)
	})
	if err == nil {
		err = os.Lchown(dir, u.uid, u.uid)
	}
	if err != nil {
		return fmt.Errorf("give %s to uid %d: %w", dir, u.uid, err)
	}
	return nil
}
