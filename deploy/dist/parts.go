package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// licencesName is the file with the licences of all parts.
const licencesName = "THIRD_PARTY_LICENSES.txt"

// part is a Go module or npm package that is inside of the programs.
type part struct {
	name, version string
	purl          string // https://github.com/package-url/purl-spec
	licence       string // an SPDX expression; empty if it is not one that is known
	text          []byte // its licence files
}

// parts returns what the programs of all platforms consist of, by package URL.
func (r release) parts(ctx context.Context) ([]part, error) {
	modules, err := r.modules(ctx)
	if err != nil {
		return nil, err
	}
	packages, err := r.packages()
	if err != nil {
		return nil, err
	}
	all := append(modules, packages...)
	slices.SortFunc(all, func(a, b part) int { return cmp.Compare(a.purl, b.purl) })
	return slices.CompactFunc(all, func(a, b part) bool { return a.purl == b.purl }), nil
}

// modules returns the Go modules with a package that is linked, and Go itself.
func (r release) modules(ctx context.Context) ([]part, error) {
	goLicence, err := licenceFiles(r.goroot)
	if err != nil {
		return nil, err
	}
	parts := []part{{name: "Go standard library", version: r.goVersion, purl: "pkg:golang/stdlib@" + r.goVersion, licence: "BSD-3-Clause", text: goLicence}}
	seen := map[string]bool{}
	for _, p := range r.platforms {
		args := []string{"list", "-deps", "-f", "{{with .Module}}{{if .Version}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}"}
		for _, name := range r.programs {
			args = append(args, "./services/...cmd/"+name)
		}
		cmd := r.goCommand(ctx, p, args...)
		cmd.Stderr = os.Stderr
		listed, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for line := range strings.Lines(string(listed)) {
			line = strings.TrimSpace(line)
			if line == "" || seen[line] {
				continue
			}
			seen[line] = true
			fields := strings.Split(line, "\t")
			text, err := licenceFiles(fields[2])
			if err != nil {
				return nil, fmt.Errorf("the Go module %s: %w", fields[0], err)
			}
			parts = append(parts, part{
				name: fields[0], version: fields[1], purl: "pkg:golang/" + fields[0] + "@" + fields[1],
				licence: identify(text), text: text,
			})
		}
	}
	return parts, nil
}

// packages returns the npm packages that the console can contain: those that package-lock.json
// lists as neither for development nor optional.
func (r release) packages() ([]part, error) {
	console := filepath.Join(r.source, "services/console")
	body, err := os.ReadFile(filepath.Join(console, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct {
			Version                    string
			License                    string
			Dev, Optional, DevOptional bool
			Link                       bool
		}
	}
	if err := json.Unmarshal(body, &lock); err != nil {
		return nil, fmt.Errorf("package-lock.json: %w", err)
	}
	var parts []part
	for folder, p := range lock.Packages {
		at := strings.LastIndex(folder, "node_modules/")
		if at < 0 || p.Dev || p.Optional || p.DevOptional || p.Link {
			continue
		}
		name := folder[at+len("node_modules/"):]
		text, err := licenceFiles(filepath.Join(console, folder))
		if err != nil && p.License == "" {
			return nil, fmt.Errorf("the npm package %s: %w", name, err)
		}
		parts = append(parts, part{
			name: name, version: p.Version, purl: "pkg:npm/" + strings.Replace(url.PathEscape(name), "%2F", "/", 1) + "@" + p.Version,
			licence: p.License, text: text,
		})
	}
	return parts, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice)([.-].*)?$`)

// licenceFiles returns the texts of the licence files of a folder, one after the other.
func licenceFiles(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var texts []byte
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenceFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(append(texts, bytes.TrimSpace(text)...), "\n\n"...)
	}
	if len(texts) == 0 {
		return nil, errors.New("it has no licence file")
	}
	return texts, nil
}

// identify returns the SPDX identifiers of the licences in a text, joined by AND.
func identify(text []byte) string {
	var ids []string
	for _, match := range licensecheck.Scan(text).Match {
		if !match.IsURL && !slices.Contains(ids, match.ID) {
			ids = append(ids, match.ID)
		}
	}
	return strings.Join(ids, " AND ")
}

// writeParts writes the list of parts and their licences, and returns the latter.
func writeParts(dir, version string, parts []part) ([]byte, error) {
	licences := []byte("Signalbox contains the following, under these licences.\n")
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: "signalbox", Type: cdx.ComponentTypeApplication, Name: "signalbox", Version: version,
	}}
	components := make([]cdx.Component, 0, len(parts))
	for _, p := range parts {
		licences = fmt.Appendf(licences, "\n%s\n%s %s", strings.Repeat("─", 80), p.name, p.version)
		if p.licence != "" {
			licences = fmt.Appendf(licences, " (%s)", p.licence)
		}
		licences = append(append(licences, "\n\n"...), p.text...)

		component := cdx.Component{BOMRef: p.purl, Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version, PackageURL: p.purl}
		if p.licence != "" {
			component.Licenses = &cdx.Licenses{{Expression: p.licence}}
		}
		components = append(components, component)
	}
	bom.Components = &components
	var encoded bytes.Buffer
	if err := cdx.NewBOMEncoder(&encoded, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, err
	}
	return licences, errors.Join(
		os.WriteFile(filepath.Join(dir, "sbom.cdx.json"), encoded.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, licencesName), licences, 0o644),
	)
}
