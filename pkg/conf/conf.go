// Package conf reads a service's settings from its environment and writes its --help. A
// struct describes the settings:
//
//	type Config struct {
//		Addr string        `env:"GATEWAY_HTTP_ADDR" envDefault:":8080" doc:"Address of the public HTTP listener."`
//		Key  conf.Secret   `env:"GATEWAY_KEY,required" doc:"…"`
//		DB   DatabaseConf  // nested structs are walked
//	}
//
// Every field with an env tag has a doc tag, a sentence for the service's operator. Load
// refuses a struct without it, so that --help is complete.
package conf

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"
)

// Validator is implemented by settings that check themselves. The error says what would be
// right.
type Validator interface{ Validate() error }

// Secret is a setting that must not be printed. Reveal returns its text.
type Secret string

// Reveal returns the secret's text, which must not get into errors and logs.
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

// Load fills into, a pointer to a settings struct, from environ ("KEY=value" strings, as of
// os.Environ) and validates it. Its error names all variables that do not parse, and says what
// would be right.
func Load(into any, environ []string) error {
	if _, err := Variables(into); err != nil {
		return err
	}
	environment := env.ToMap(environ)
	if err := env.ParseWithOptions(into, env.Options{Environment: environment}); err != nil {
		return fmt.Errorf("read settings from the environment: %w", cmp.Or(explain(into, environment), err))
	}
	if v, ok := into.(Validator); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	return nil
}

// SetDefaults sets the zero fields of a pointer to a settings struct to their defaults, for
// programs and tests that do not use the environment.
func SetDefaults(into any) error {
	err := env.ParseWithOptions(into, env.Options{Environment: map[string]string{}, SetDefaultsForZeroValuesOnly: true})
	if several, ok := errors.AsType[env.AggregateError](err); ok {
		several.Errors = slices.DeleteFunc(several.Errors, func(err error) bool {
			_, unset := errors.AsType[env.VarIsNotSetError](err) // the caller fills required fields
			return unset
		})
		if len(several.Errors) == 0 {
			return nil
		}
		return several
	}
	return err
}

// Variable is one line of --help.
type Variable struct {
	Name     string `json:"name"`
	Default  string `json:"default,omitempty"`
	Required bool   `json:"required,omitempty"`
	Doc      string `json:"doc"`
}

// Variables lists the variables of a pointer to a settings struct, in the order of its fields.
func Variables(of any) ([]Variable, error) {
	t := reflect.TypeOf(of)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("settings must be a pointer to a struct, not %T", of)
	}
	var out []Variable
	err := walk(t.Elem(), "", func(prefix string, f reflect.StructField) error {
		name, opts, _ := strings.Cut(f.Tag.Get("env"), ",")
		v := Variable{Name: prefix + name, Default: f.Tag.Get("envDefault"), Required: strings.Contains(opts, "required") || strings.Contains(opts, "notEmpty"), Doc: f.Tag.Get("doc")}
		if v.Doc == "" {
			return fmt.Errorf("%s (%s) has no doc tag", f.Name, v.Name)
		}
		out = append(out, v)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%T: %w", of, err)
	}
	return out, nil
}

// walk calls fn for each field with a variable, in order, until fn returns an error.
func walk(t reflect.Type, prefix string, fn func(prefix string, f reflect.StructField) error) (err error) {
	for f := range t.Fields() {
		if _, ok := f.Tag.Lookup("env"); ok {
			err = fn(prefix, f)
		} else if f.Type.Kind() == reflect.Struct {
			err = walk(f.Type, prefix+f.Tag.Get("envPrefix"), fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// explain names the variables that do not parse. It parses each field once more by itself,
// because the library's errors have the names of fields, not of variables.
func explain(into any, environment map[string]string) error {
	var all []error
	_ = walk(reflect.TypeOf(into).Elem(), "", func(prefix string, f reflect.StructField) error {
		alone := reflect.New(reflect.StructOf([]reflect.StructField{f}))
		err := env.ParseWithOptions(alone.Interface(), env.Options{Environment: environment, Prefix: prefix})
		if several, ok := errors.AsType[env.AggregateError](err); ok {
			err = errors.Join(several.Errors...)
		}
		if malformed, ok := errors.AsType[env.ParseError](err); ok {
			name, _, _ := strings.Cut(f.Tag.Get("env"), ",")
			name = prefix + name
			err = fmt.Errorf("%s=%q %w", name, cmp.Or(environment[name], f.Tag.Get("envDefault")), advise(malformed))
		}
		if err != nil {
			all = append(all, err)
		}
		return nil
	})
	return errors.Join(all...)
}

// advise says what is wrong with a value that does not parse, and what would be right.
func advise(e env.ParseError) error {
	switch e.Type {
	case reflect.TypeFor[time.Duration]():
		return errors.New("is not a duration: use a number with a unit, such as 500ms, 30s or 1h30m")
	case reflect.TypeFor[slog.Level]():
		return errors.New("is not a level: use debug, info, warn or error")
	}
	number, _ := errors.AsType[*strconv.NumError](e.Err)
	switch kind := e.Type.Kind(); {
	case kind == reflect.Bool:
		return errors.New("is neither true nor false: use one of them")
	case kind == reflect.Float32, kind == reflect.Float64:
		return errors.New("is not a number: use one, such as 0.5")
	case number == nil:
		return fmt.Errorf("is not valid: %w", e.Err)
	case !errors.Is(number, strconv.ErrRange):
		return errors.New("is not a whole number: use one, such as 100")
	case strings.HasPrefix(number.Num, "-"):
		return fmt.Errorf("is out of range: use a whole number of at least %d", int64(-1)<<(e.Type.Bits()-1))
	default:
		return fmt.Errorf("is out of range: use a whole number of at most %d", int64(1)<<(e.Type.Bits()-1)-1)
	}
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
