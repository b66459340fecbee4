// Command dist makes the files of a release in a folder:
//
//	signalbox_VERSION_OS_ARCH.tar.gz           the programs, for Linux and macOS on amd64 and arm64
//	signalbox-images_VERSION_linux_ARCH.tar    container images of the programs: an OCI image layout
//	                                           that `docker load` takes, too
//	signalbox-VERSION.tgz                      the Helm chart
//	sbom.cdx.json                              what the programs consist of (CycloneDX 1.6)
//	THIRD_PARTY_LICENSES.txt                   the licences of it
//	checksums.txt                              SHA-256 of the other files, for `sha256sum --check`
//
// The files depend on the sources, the version and the Go and Node releases alone: not on the
// folder, the time or the machine. The web console must have been built before.
package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// platform is a target of the Go compiler.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "_" + p.arch }

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// release says what is built from where.
type release struct {
	source    string // the root of the repository
	out       string
	version   string
	programs  []string // names of folders services/*/cmd/*
	platforms []platform

	goroot, goVersion string // the Go that compiles
}

// semver is a version that a chart takes (https://semver.org), without a build part, which tags
// of images cannot have.
var semver = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := release{platforms: platforms}
	flags := flag.NewFlagSet("dist", flag.ContinueOnError)
	flags.StringVar(&r.source, "source", ".", "the root of the repository")
	flags.StringVar(&r.out, "out", "bin/dist", "folder for the files; it is emptied first")
	flags.StringVar(&r.version, "version", "", "the version, as in 1.2.3 or 1.2.3-rc.1")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !semver.MatchString(r.version) {
		return fmt.Errorf("the version is %q: it must be like 1.2.3 or 1.2.3-rc.1", r.version)
	}
	var err error
	if r.programs, err = programs(r.source); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION")
	cmd.Dir = r.source
	env, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	fields := strings.Fields(string(env))
	if len(fields) != 2 {
		return fmt.Errorf("go env printed %q", env)
	}
	r.goroot, r.goVersion = fields[0], strings.TrimPrefix(fields[1], "go")
	return r.make(ctx)
}

// programs returns the programs under services; those of the end-to-end tests are not released.
func programs(source string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(source, "services/*/cmd/*/main.go"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range found {
		if !strings.Contains(filepath.ToSlash(file), "/services/e2e/") {
			names = append(names, filepath.Base(filepath.Dir(file)))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no programs (services/*/cmd/*): is it the root of the repository?", source)
	}
	return names, nil
}

func (r release) make(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(r.source, "services/console/dist/index.html")); err != nil {
		return errors.New("the web console is not built: run `make console` first")
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	parts, err := r.parts(ctx)
	if err != nil {
		return err
	}
	licences, err := writeParts(r.out, r.version, parts)
	if err != nil {
		return err
	}
	for _, p := range r.platforms {
		fmt.Fprintln(os.Stderr, "Building for", p)
		built, err := r.compile(ctx, p)
		if err != nil {
			return err
		}
		if err = r.check(ctx, p, built); err == nil {
			err = errors.Join(r.archive(p, built, licences), r.images(p, built))
		}
		if err = errors.Join(err, os.RemoveAll(built)); err != nil {
			return err
		}
	}
	if err := r.chart(); err != nil {
		return err
	}
	return checksums(r.out)
}

// compile builds the programs into a new folder and returns it; the caller removes it.
func (r release) compile(ctx context.Context, p platform) (string, error) {
	dir, err := os.MkdirTemp("", "signalbox-dist-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X signalbox.dev/pkg/process.version=" + r.version, "-o", dir + "/"}
	for _, name := range r.programs {
		args = append(args, "./services/...cmd/"+name)
	}
	cmd := r.goCommand(ctx, p, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("go build for %s: %w", p, err), os.RemoveAll(dir))
	}
	return dir, nil
}

// check checks that the programs are for the platform, and asks those for their version that can run here.
func (r release) check(ctx context.Context, p platform, dir string) error {
	for _, name := range r.programs {
		file := filepath.Join(dir, name)
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if got := (platform{settings["GOOS"], settings["GOARCH"]}); got != p {
			return fmt.Errorf("%s is a program for %s, want %s", name, got, p)
		}
		if (p != platform{runtime.GOOS, runtime.GOARCH}) {
			continue
		}
		out, err := exec.CommandContext(ctx, file, "--version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s --version: %w: %s", name, err, out)
		}
		if !strings.Contains(string(out), r.version) {
			return fmt.Errorf("%s --version printed %q, want version %s", name, out, r.version)
		}
	}
	return nil
}

func (r release) goCommand(ctx context.Context, p platform, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.source
	// The flags are this program's own, so that nobody's environment changes what is built.
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	return cmd
}
