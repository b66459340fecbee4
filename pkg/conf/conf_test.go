package conf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/conf"
)

type inner struct {
	URL conf.Secret `env:"DATABASE_URL,required" doc:"Where Postgres is."`
}

type settings struct {
	Addr string        `env:"ADDR" envDefault:":80" doc:"Where to listen."`
	Wait time.Duration `env:"WAIT" envDefault:"3s" doc:"How long."`
	DB   inner
}

func (s *settings) Validate() error {
	if s.Wait < 0 {
		return errors.New("WAIT must not be negative: use 0 to not wait")
	}
	return nil
}

func TestLoad(t *testing.T) {
	t.Parallel()
	var got settings
	if err := conf.Load(&got, []string{"DATABASE_URL=postgres://u:p@h/d", "WAIT=1m", "UNKNOWN=1"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(settings{":80", time.Minute, inner{"postgres://u:p@h/d"}}, got); diff != "" {
		t.Error(diff)
	}
	for name, tc := range map[string]struct {
		env  []string
		want string
	}{
		"missing":   {nil, "DATABASE_URL"},
		"malformed": {[]string{"DATABASE_URL=x", "WAIT=soon"}, "soon"},
		"invalid":   {[]string{"DATABASE_URL=x", "WAIT=-1s"}, "WAIT must not be negative"},
	} {
		if err := conf.Load(new(settings), tc.env); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Load = %v, want an error with %q", name, err, tc.want)
		}
	}
	if err := conf.Load(&struct {
		A string `env:"A"`
	}{}, nil); err == nil || !strings.Contains(err.Error(), "no doc tag") {
		t.Errorf("a field without doc: Load = %v", err)
	}
}

func TestSetDefaults(t *testing.T) {
	t.Parallel()
	got := settings{Wait: time.Minute}
	if err := conf.SetDefaults(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(settings{Addr: ":80", Wait: time.Minute}, got); diff != "" {
		t.Error(diff)
	}
	var wrong struct {
		Wait time.Duration `env:"WAIT" envDefault:"soon" doc:"How long."`
	}
	if err := conf.SetDefaults(&wrong); err == nil || !strings.Contains(err.Error(), "soon") {
		t.Errorf("a default that does not parse: SetDefaults = %v", err)
	}
}

// An error names the variable, as the operator knows it, and says what would be right.
func TestMalformed(t *testing.T) {
	t.Parallel()
	type limits struct {
		Wait time.Duration `env:"WAIT" envDefault:"1s" doc:"How long."`
	}
	type all struct {
		Limits limits
		Wait   time.Duration `env:"GRACE" doc:"How long."`
		Count  int32         `env:"COUNT" doc:"How many."`
		Share  float64       `env:"SHARE" doc:"How much."`
		On     bool          `env:"ON" doc:"Whether."`
		Level  slog.Level    `env:"LEVEL" doc:"What is logged."`
		Key    conf.Secret   `env:"KEY,required" doc:"The key."`
		Inner  struct {
			Limits limits
		} `envPrefix:"INNER_"`
	}
	for _, tt := range []struct {
		environ []string
		want    []string
	}{
		{[]string{"KEY=k", "GRACE=soon"}, []string{`GRACE="soon" is not a duration: use a number with a unit, such as 500ms, 30s or 1h30m`}},
		{[]string{"KEY=k", "WAIT=10"}, []string{`WAIT="10" is not a duration: use a number with a unit, such as 500ms, 30s or 1h30m`}},
		{[]string{"KEY=k", "INNER_WAIT=1 h"}, []string{`INNER_WAIT="1 h" is not a duration: use a number with a unit, such as 500ms, 30s or 1h30m`}},
		{[]string{"KEY=k", "COUNT=many"}, []string{`COUNT="many" is not a whole number: use one, such as 100`}},
		{[]string{"KEY=k", "COUNT=3000000000"}, []string{`COUNT="3000000000" is out of range: use a whole number of at most 2147483647`}},
		{[]string{"KEY=k", "COUNT=-3000000000"}, []string{`COUNT="-3000000000" is out of range: use a whole number of at least -2147483648`}},
		{[]string{"KEY=k", "SHARE=half"}, []string{`SHARE="half" is not a number: use one, such as 0.5`}},
		{[]string{"KEY=k", "ON=yes"}, []string{`ON="yes" is neither true nor false: use one of them`}},
		{[]string{"KEY=k", "LEVEL=loud"}, []string{`LEVEL="loud" is not a level: use debug, info, warn or error`}},
		{[]string{"COUNT=x", "INNER_WAIT=y"}, []string{`COUNT="x"`, `"KEY" is not set`, `INNER_WAIT="y"`}},
	} {
		err := conf.Load(new(all), tt.environ)
		if err == nil {
			t.Errorf("with %q: Load = nil", tt.environ)
			continue
		}
		lines := strings.Split(strings.TrimPrefix(err.Error(), "read settings from the environment: "), "\n")
		if len(lines) != len(tt.want) {
			t.Errorf("with %q: Load = %q, want %q", tt.environ, lines, tt.want)
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("with %q: Load = %q, want %q", tt.environ, lines[i], want)
			}
		}
	}
}

func TestWriteHelp(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := conf.WriteHelp(&b, new(settings)); err != nil {
		t.Fatal(err)
	}
	want := "  ADDR          Where to listen. (default :80)\n  WAIT          How long. (default 3s)\n  DATABASE_URL  Where Postgres is. (required)\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	s := settings{DB: inner{"hunter2"}}
	j, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v %q", s, s, s.DB.URL), string(j)} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("a secret is printed: %s", text)
		}
	}
}
