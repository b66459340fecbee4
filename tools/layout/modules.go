package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// members are the modules of go.work, from the floor up: each requires those
// before it that it uses.
var members = []string{"proto", "pkg", "services"}

// paired are the generators in tools that must be of the version of the library
// that their output is compiled against.
var paired = []string{"google.golang.org/protobuf", "connectrpc.com/connect"}

// checkModules checks go.work and the go.mod files: the three modules have the same version of
// Go and of each dependency, alone (GOWORK=off) and in the workspace.
func checkModules(root fs.FS) ([]string, error) {
	work, err := readWork(root)
	if err != nil {
		return nil, err
	}
	var wrong []string
	var used []string
	for _, use := range work.Use {
		used = append(used, strings.TrimPrefix(use.Path, "./"))
	}
	slices.Sort(used)
	if want := slices.Sorted(slices.Values(members)); !slices.Equal(used, want) {
		wrong = append(wrong, fmt.Sprintf("go.work: its members are %s, not %s: tools and checks must not choose the product's versions", used, want))
	}

	c := versions{goVersion: work.Go.Version, of: map[string]pin{}}
	for _, name := range members {
		mod, err := readMod(root, name)
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, c.check(name, mod)...)
	}
	tools, err := readMod(root, "tools")
	if err != nil {
		return nil, err
	}
	for _, r := range tools.Require {
		if have, ok := c.of[r.Mod.Path]; ok && slices.Contains(paired, r.Mod.Path) && have.version != r.Mod.Version {
			wrong = append(wrong, fmt.Sprintf("tools/go.mod: %s is %s; %s/go.mod has %s: generated code and library belong together", r.Mod.Path, r.Mod.Version, have.by, have.version))
		}
	}
	return wrong, nil
}

type pin struct{ version, by string }

// versions collects the modules' requirements.
type versions struct {
	goVersion string
	of        map[string]pin
}

func (v versions) check(name string, mod *modfile.File) []string {
	var wrong []string
	say := func(format string, args ...any) {
		wrong = append(wrong, name+"/go.mod: "+fmt.Sprintf(format, args...))
	}
	if mod.Module == nil || mod.Module.Mod.Path != module+name {
		say("the module is not named %s%s", module, name)
	}
	if mod.Go == nil || mod.Go.Version != v.goVersion {
		say("its go line is not that of go.work, go %s", v.goVersion)
	}
	if mod.Toolchain != nil {
		say("it has a toolchain line: any Go of at least go %s will do", v.goVersion)
	}
	required := map[string]bool{}
	for _, r := range mod.Require {
		if own, ok := strings.CutPrefix(r.Mod.Path, module); ok {
			required[own] = true
			if r.Mod.Version != "v0.0.0" {
				say("%s is required as %s, not v0.0.0", r.Mod.Path, r.Mod.Version)
			}
			continue
		}
		switch have, ok := v.of[r.Mod.Path]; {
		case !ok:
			v.of[r.Mod.Path] = pin{r.Mod.Version, name}
		case have.version != r.Mod.Version:
			say("%s is %s; %s/go.mod has %s", r.Mod.Path, r.Mod.Version, have.by, have.version)
		}
	}
	for _, r := range mod.Replace {
		own := strings.TrimPrefix(r.Old.Path, module)
		if !required[own] || r.New.Path != "../"+own {
			say("%s is replaced by %s: only our own modules are, by the folder next door", r.Old.Path, r.New.Path)
		}
		delete(required, own)
	}
	for _, own := range slices.Sorted(maps.Keys(required)) {
		say("%s%s is required but not replaced by ../%s: it does not build with GOWORK=off", module, own, own)
	}
	return wrong
}

func readWork(root fs.FS) (*modfile.WorkFile, error) {
	text, err := fs.ReadFile(root, "go.work")
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	if work.Go == nil {
		return nil, errors.New("go.work: no go line")
	}
	return work, nil
}

func readMod(root fs.FS, name string) (*modfile.File, error) {
	text, err := fs.ReadFile(root, name+"/go.mod")
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name+"/go.mod", text, nil)
}
