package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user of the images, that of deploy/Dockerfile.
const nonroot = 65532

// images writes an image of each program: the same as deploy/Dockerfile makes, but for the base,
// which consists of certificates, time zones, an unprivileged user and its folder. The browser's
// image needs Chromium from Debian and is made by the Dockerfile alone.
func (r release) images(p platform, built string) error {
	if p.os != "linux" {
		return nil
	}
	base, err := r.baseLayer()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "signalbox-images-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	var docker []dockerImage
	for _, program := range r.programs {
		if program == "browser" {
			continue
		}
		image, err := r.image(p, base, filepath.Join(built, program), program)
		if err != nil {
			return fmt.Errorf("image of %s: %w", program, err)
		}
		tag := "signalbox/" + program + ":" + r.version
		// containerd and skopeo read the annotations, Docker reads manifest.json. skopeo takes the first
		// image with the name that it is given, so no two may have the same.
		err = index.AppendImage(image, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          "docker.io/" + tag,
			"org.opencontainers.image.ref.name": tag,
		}))
		if err != nil {
			return err
		}
		entry, err := dockerEntry(image, tag)
		if err != nil {
			return err
		}
		docker = append(docker, entry)
	}
	manifest, err := json.Marshal(docker)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o644); err != nil {
		return err
	}
	return packFolder(dir, filepath.Join(r.out, fmt.Sprintf("signalbox-images_%s_%s.tar", r.version, p)))
}

// dockerImage is an entry of the manifest.json that `docker load` reads
// (https://github.com/moby/moby/blob/v28.0.0/image/spec/v1.2.md). Its paths are those of the OCI
// layout.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func dockerEntry(image v1.Image, tag string) (dockerImage, error) {
	config, err := image.ConfigName()
	if err != nil {
		return dockerImage{}, err
	}
	entry := dockerImage{Config: "blobs/sha256/" + config.Hex, RepoTags: []string{tag}}
	layers, err := image.Layers()
	if err != nil {
		return dockerImage{}, err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return dockerImage{}, err
		}
		entry.Layers = append(entry.Layers, "blobs/sha256/"+digest.Hex)
	}
	return entry, nil
}

func (r release) image(p platform, base v1.Layer, executable, program string) (v1.Image, error) {
	body, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf([]file{{name: "service", mode: 0o755, body: body}})
	if err != nil {
		return nil, err
	}
	oci := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	image, err := mutate.AppendLayers(oci, base, layer)
	if err != nil {
		return nil, err
	}
	config, err := configOf(image, p, program, r.version)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, config)
}

// configOf is what deploy/Dockerfile says after its last FROM.
func configOf(image v1.Image, p platform, program, version string) (*v1.ConfigFile, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = p.os, p.arch
	config.Created = v1.Time{Time: epoch.UTC()}
	config.Config = v1.Config{
		Entrypoint:   []string{"/service"},
		Env:          []string{"PATH=/", "ZONEINFO=/zoneinfo.zip"},
		User:         fmt.Sprintf("%d:%d", nonroot, nonroot),
		WorkingDir:   "/data",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/service", "--healthcheck"}, Interval: 5 * time.Second, Timeout: 3 * time.Second, StartPeriod: 20 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":   "signalbox/" + program,
			"org.opencontainers.image.version": version,
		},
	}
	return config, nil
}

// baseLayer has what programs without a system below them need.
func (r release) baseLayer() (v1.Layer, error) {
	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		// A file of certificates cannot say that a root is trusted in part only.
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	zones, err := os.ReadFile(filepath.Join(r.goroot, "lib/time/zoneinfo.zip"))
	if err != nil {
		return nil, err
	}
	user := fmt.Sprintf("nonroot:x:%d:%d:nonroot:/data:/sbin/nologin\n", nonroot, nonroot)
	return layerOf([]file{
		{name: "data/", mode: 0o755, uid: nonroot},
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, body: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot)},
		{name: "etc/passwd", mode: 0o644, body: []byte("root:x:0:0:root:/root:/sbin/nologin\n" + user)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, body: certificates.Bytes()},
		{name: "tmp/", mode: 0o1777},
		{name: "zoneinfo.zip", mode: 0o644, body: zones},
	})
}

func layerOf(files []file) (v1.Layer, error) {
	var archive bytes.Buffer
	if err := writeTar(&archive, files); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// packFolder writes an archive of the files of a folder.
func packFolder(dir, out string) (err error) {
	var files []file
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, name)
		files = append(files, file{name: filepath.ToSlash(inside), mode: 0o644, body: body})
		return err
	})
	if err != nil {
		return err
	}
	archive, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	return writeTar(archive, files)
}
