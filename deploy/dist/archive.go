package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"time"
)

// file is an entry of an archive. A name that ends in a slash is a folder.
type file struct {
	name string
	mode int64
	uid  int
	body []byte
}

// epoch is the time of each file in an archive.
var epoch = time.Unix(0, 0)

// writeTar writes files in the order that is given, so that equal files are equal archives.
func writeTar(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.body)), ModTime: epoch, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.body); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeTarGz writes a compressed archive to a new file.
func writeTarGz(name string, files []file) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(compressed, files), compressed.Close())
}

// archive packs the programs that were built for a platform.
func (r release) archive(p platform, built string, licences []byte) error {
	folder := fmt.Sprintf("signalbox_%s_%s", r.version, p)
	var files []file
	for _, name := range r.programs {
		body, err := os.ReadFile(filepath.Join(built, name))
		if err != nil {
			return err
		}
		files = append(files, file{name: path.Join(folder, name), mode: 0o755, body: body})
	}
	for _, name := range []string{"CHANGELOG.md", "LICENSE"} {
		body, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return err
		}
		files = append(files, file{name: path.Join(folder, name), mode: 0o644, body: body})
	}
	files = append(files, file{name: path.Join(folder, licencesName), mode: 0o644, body: licences})
	return writeTarGz(filepath.Join(r.out, folder+".tar.gz"), files)
}

// chartVersions are the two lines of Chart.yaml that a release sets.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion):.*$`)

// chart packs the Helm chart, with the release's version as its own and as that of the images.
func (r release) chart() error {
	root := filepath.Join(r.source, "deploy/helm/signalbox")
	var files []file
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if inside == "Chart.yaml" {
			body = chartVersions.ReplaceAll(body, []byte(`$1: "`+r.version+`"`))
		}
		files = append(files, file{name: path.Join("signalbox", filepath.ToSlash(inside)), mode: 0o644, body: body})
		return nil
	})
	if err != nil {
		return fmt.Errorf("the chart: %w", err)
	}
	return writeTarGz(filepath.Join(r.out, "signalbox-"+r.version+".tgz"), files)
}

// checksums writes the SHA-256 of each file of a folder into checksums.txt.
func checksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums []byte
	for _, entry := range entries {
		sum, err := digest(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		sums = fmt.Appendf(sums, "%x  %s\n", sum, entry.Name())
	}
	return os.WriteFile(filepath.Join(dir, "checksums.txt"), sums, 0o644)
}

func digest(name string) ([]byte, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return nil, err
	}
	return sum.Sum(nil), nil
}
