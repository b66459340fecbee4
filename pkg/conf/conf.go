// Package conf reads a service's settings from its environment and writes its
// --help. A settings struct is the only description there is:
//
//	type Config struct {
//		Addr string        `env:"GATEWAY_HTTP_ADDR" envDefault:":8080" doc:"Address of the public HTTP listener."`
//		Key  conf.Secret   `env:"GATEWAY_KEY,required" doc:"…"`
//		DB   DatabaseConf  // nested structs are walked
//	}
//
// Every field with an env tag has a doc tag, one sentence for the person who
// operates the service; Load refuses a struct without it, so that --help is whole.
package conf

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"text/tabwriter"

	"github.com/caarlos0/env/v11"
)

// Validator is implemented by settings that can say what is wrong with them, and
// what would be right.
type Validator interface{ Validate() error }

// Secret is a setting that must not be printed. Reveal gives its text.
type Secret string

// Reveal returns the secret's text; keep it out of errors and logs.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Load fills into, a pointer to a settings struct, from environ ("KEY=value"
// lines, as os.Environ gives them) and validates it.
func Load(into any, environ []string) error {
	if _, err := Variables(into); err != nil {
		return err
	}
	if err := env.ParseWithOptions(into, env.Options{Environment: env.ToMap(environ)}); err != nil {
		if all, ok := errors.AsType[env.AggregateError](err); ok {
			err = errors.Join(all.Errors...)
		}
		return fmt.Errorf("read settings from the environment: %w", err)
	}
	if v, ok := into.(Validator); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	return nil
}

// Variable is one line of --help.
type Variable struct {
	Name     string `json:"name"`
	Default  string `json:"default,omitempty"`
	Required bool   `json:"required,omitempty"`
	Doc      string `json:"doc"`
}

// Variables lists the variables of a pointer to a settings struct in the order of its fields.
func Variables(of any) ([]Variable, error) {
	t := reflect.TypeOf(of)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("settings must be a pointer to a struct, not %T", of)
	}
	return walk(t.Elem(), "")
}

func walk(t reflect.Type, prefix string) ([]Variable, error) {
	var out []Variable
	for f := range t.Fields() {
		tag, ok := f.Tag.Lookup("env")
		if !ok {
			if f.Type.Kind() == reflect.Struct {
				sub, err := walk(f.Type, prefix+f.Tag.Get("envPrefix"))
				if err != nil {
					return nil, err
				}
				out = append(out, sub...)
			}
			continue
		}
		name, opts, _ := strings.Cut(tag, ",")
		v := Variable{Name: prefix + name, Default: f.Tag.Get("envDefault"), Required: strings.Contains(opts, "required") || strings.Contains(opts, "notEmpty"), Doc: f.Tag.Get("doc")}
		if v.Doc == "" {
			return nil, fmt.Errorf("%s.%s (%s) has no doc tag", t.Name(), f.Name, v.Name)
		}
		out = append(out, v)
	}
	return out, nil
}

// WriteHelp writes the variables of settings as an aligned table.
func WriteHelp(w io.Writer, of any) error {
	vars, err := Variables(of)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, v := range vars {
		note := ""
		switch {
		case v.Required:
			note = " (required)"
		case v.Default != "":
			note = fmt.Sprintf(" (default %s)", v.Default)
		}
		fmt.Fprintf(tw, "  %s\t%s%s\n", v.Name, v.Doc, note)
	}
	return tw.Flush()
}
