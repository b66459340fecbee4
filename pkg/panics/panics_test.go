package panics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"signalbox.dev/pkg/panics"
)

type document struct{ name string }

// open dereferences a nil pointer if d is nil.
func open(d *document) (name string, err error) {
	defer panics.Recover(&err)
	return d.name, nil
}

func TestRecover(t *testing.T) {
	t.Parallel()
	if name, err := open(&document{"tea"}); name != "tea" || err != nil {
		t.Errorf("open = %q, %v", name, err)
	}
	_, err := open(nil)
	p, ok := errors.AsType[*panics.Error](err)
	if !ok || !strings.Contains(string(p.Stack), "panics_test.open") {
		t.Fatalf("open(nil) = %v, want a panics.Error with the stack of open", err)
	}
	if _, ok := errors.AsType[runtime.Error](err); !ok {
		t.Errorf("open(nil) = %v, want the runtime's error in its chain", err)
	}
}

func TestTryKeepsTheError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	if err := panics.Try(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("Try = %v, want %v", err, broken)
	}
}

func TestContain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	if panics.Contain(t.Context(), log, "calm work", func() {}) || out.Len() > 0 {
		t.Errorf("work that does not panic is reported as a panic: %s", &out)
	}
	if !panics.Contain(t.Context(), log, "rough work", func() { panic("oh no") }) {
		t.Error("Contain does not report the panic")
	}
	for _, want := range []string{"rough work", "oh no", "TestContain"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %q: %s", want, &out)
		}
	}
}

func TestSupervise(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	ended := errors.New("ended")
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		err := panics.Supervise(t.Context(), log, "loop", func(context.Context) error {
			if rounds++; rounds < 3 {
				panic(rounds)
			}
			return ended
		})
		if rounds != 3 || !errors.Is(err, ended) {
			t.Errorf("Supervise = %v after %d rounds, want %v after 3", err, rounds, ended)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := panics.Supervise(ctx, log, "loop", func(context.Context) error {
			cancel()
			panic("at the end")
		})
		if err != nil {
			t.Errorf("Supervise of a loop that panics at the end = %v, want nil", err)
		}
	})
}
