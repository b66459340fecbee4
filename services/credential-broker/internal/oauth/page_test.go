package oauth_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/profile"
)

// The page for operators: its examples load and use every field, its table describes every
// field, and its error is the one that Load returns.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/sign-in-providers.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	examples := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n# (\\S+)\n(.*?)```").FindAllStringSubmatch(page, -1) {
		examples[m[1]] = "# " + m[1] + "\n" + m[2]
	}
	load := func(provider string) (*oauth.Providers, error) {
		return oauth.Load(nil, fstest.MapFS{"acme.yaml": {Data: []byte(provider)}})
	}

	all, err := load(examples["acme.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Get("acme")
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profile.Load("v", fstest.MapFS{"acme.yaml": {Data: []byte(examples["acme-profile.yaml"])}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := profiles.Get(p.Profile); !ok {
		t.Errorf("there is no profile %s", p.Profile)
	}

	fields := yamlFields(reflect.TypeFor[oauth.Provider](), "")
	var described []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(page, -1) {
		described = append(described, m[1])
	}
	slices.Sort(described)
	if diff := cmp.Diff(fields, described); diff != "" {
		t.Errorf("described fields (-want +got):\n%s", diff)
	}
	for _, field := range fields {
		last := field[strings.LastIndex(field, ".")+1:]
		if !regexp.MustCompile(`(?m)^ *` + last + `:`).MatchString(examples["acme.yaml"]) {
			t.Errorf("the example lacks %s", field)
		}
	}

	const token = "token: https"
	_, err = load(strings.Replace(examples["acme.yaml"], token, strings.TrimSuffix(token, "s"), 1))
	if err == nil || !strings.Contains(page, "\n    "+err.Error()+"\n") {
		t.Errorf("Load of a token endpoint without TLS = %v, want the error of the page", err)
	}
}

// yamlFields returns the sorted paths of a struct's YAML fields.
func yamlFields(of reflect.Type, prefix string) []string {
	var all []string
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Type.Kind() != reflect.Struct:
			all = append(all, prefix+name)
		case options == "inline":
			all = append(all, yamlFields(f.Type, prefix)...)
		default:
			all = append(all, yamlFields(f.Type, prefix+name+".")...)
		}
	}
	slices.Sort(all)
	return all
}
