package layout

import (
	"fmt"
	"path"
	"strings"
)

// rule returns why an import is not allowed, or "".
type rule func(d dir, f file, imported string) string

// rules are the rules for imports.
//
//  1. proto imports none of our packages.
//  2. pkg imports proto only.
//  3. A service imports pkg, proto and itself, never another service: services
//     meet in proto. Their tests may use the simulator and the far end of the
//     end-to-end tests, which they would otherwise fake.
//  4. Only main packages compose services, and standalone, which combines all of them.
//  5. Some libraries may be imported by one of our packages only.
//  6. Packages for tests are imported by tests only.
var rules = []rule{protoIsTheFloor, pkgKnowsNoService, servicesMeetInProto, oneDoor, testsStayOut}

// doors are the only packages that may import a library, by the library's prefix. The
// end-to-end tests may use such a library, too, to inspect what the services have written.
var doors = map[string]struct{ only, why string }{
	"github.com/nats-io/nats-server":  {"pkg/natsd", "a server is embedded in one way, with one set of limits"},
	"github.com/jackc/pgx/v5/pgxpool": {"pkg/pg", "outside a transaction of package pg, queries have no workspace"},
}

// testParts are packages of the standard library that only tests may import.
var testParts = []string{"testing", "net/http/httptest"}

func (d dir) checkImports() []string {
	var wrong []string
	for _, f := range d.files {
		for _, imported := range f.imports {
			for _, refuse := range rules {
				if why := refuse(d, f, imported); why != "" {
					wrong = append(wrong, fmt.Sprintf("%s/%s: imports %s: %s", d.path, f.name, imported, why))
				}
			}
		}
	}
	return wrong
}

func protoIsTheFloor(d dir, _ file, imported string) string {
	if within(d.path, "proto") && within(imported, strings.TrimSuffix(module, "/")) && !within(imported, module+"proto") {
		return "proto imports none of our packages"
	}
	return ""
}

func pkgKnowsNoService(d dir, _ file, imported string) string {
	if within(d.path, "pkg") && within(imported, module+"services") {
		return "pkg knows no service"
	}
	return ""
}

func servicesMeetInProto(d dir, f file, imported string) string {
	mine, theirs := service(d.path), service(strings.TrimPrefix(imported, module))
	switch {
	case mine == "" || theirs == "" || mine == theirs, mine == "standalone", f.pkg == "main":
		return ""
	case f.test && (theirs == "simulator" || within(imported, module+"services/e2e/farend")):
		return ""
	case theirs == "standalone":
		return "only a main package composes"
	}
	return "a service never imports another service: they meet in proto"
}

// service returns the service that a path below the repository belongs to.
func service(p string) string {
	rest, ok := strings.CutPrefix(p, "services/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func oneDoor(d dir, f file, imported string) string {
	if f.test && within(d.path, "services/e2e") {
		return ""
	}
	for part, door := range doors {
		if within(imported, part) && !within(d.path, door.only) {
			return fmt.Sprintf("only %s may: %s", door.only, door.why)
		}
	}
	return ""
}

func testsStayOut(d dir, f file, imported string) string {
	if f.test || forTests(d.path) {
		return ""
	}
	if within(imported, strings.TrimSuffix(module, "/")) && forTests(imported) {
		return "packages named …test are for tests"
	}
	for _, part := range testParts {
		if within(imported, part) {
			return "it is for tests: put test helpers into packages named …test"
		}
	}
	return ""
}

// forTests reports whether a package is named …test, or is below such a package.
func forTests(p string) bool {
	for ; p != "." && p != "/"; p = path.Dir(p) {
		if strings.HasSuffix(path.Base(p), "test") {
			return true
		}
	}
	return false
}

// within reports whether p is parent or below it.
func within(p, parent string) bool {
	return p == parent || strings.HasPrefix(p, parent+"/")
}
