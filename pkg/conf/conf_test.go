package conf_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
			t.Errorf("a secret shows: %s", text)
		}
	}
}
