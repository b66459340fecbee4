package accountfile_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// childVariable makes this test binary a process that writes; it names the file.
const childVariable = "ACCOUNTFILE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		os.Exit(child(path, os.Args[1], os.Args[2]))
	}
	os.Exit(m.Run())
}

// child adds to the statistics of an account n times, and says how far it is after each
// time. Between two writes the file grows and shrinks by some kilobytes.
func child(path, account, times string) int {
	ctx := context.Background()
	f, err := accountfile.Open(ctx, path, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n, err := strconv.Atoi(times)
	if err != nil {
		return 2
	}
	mine := id.Must[id.Account](account)
	for i := range n {
		now := int64(0)
		err := f.Update(ctx, func(s *accountfile.State) error {
			s.Pools = []accountfile.Pool{{Provider: strings.Repeat("x", i*977%40_000)}}
			s.Record(audit.Row{Action: "changed", Detail: strconv.Itoa(i)})
			for k := range s.Stats {
				if s.Stats[k].Account == mine {
					s.Stats[k].Requests++
					now = s.Stats[k].Requests
					return nil
				}
			}
			s.Stats = append(s.Stats, accountfile.Stat{Provider: "openai", Account: mine, Reason: "OK", Requests: 1})
			now = 1
			return nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Fprintln(os.Stdout, now)
	}
	return 0
}

func startChild(t *testing.T, path string, account id.Account, times int) (*exec.Cmd, *bufio.Scanner, *strings.Builder) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], account.String(), strconv.Itoa(times))
	cmd.Env = append(os.Environ(), childVariable+"="+path)
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out), complaints
}

func requests(s *accountfile.State, account id.Account) int64 {
	for _, x := range s.Stats {
		if x.Account == account {
			return x.Requests
		}
	}
	return 0
}

// TestProcesses has several processes write at once: nothing is lost.
func TestProcesses(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, log := open(t, path)
	shared := id.New[id.Account]()
	const children, each = 3, 40
	var wg sync.WaitGroup
	for range children {
		cmd, out, complaints := startChild(t, path, shared, each)
		wg.Go(func() {
			for out.Scan() { // until it has ended
			}
			if err := cmd.Wait(); err != nil || complaints.Len() > 0 {
				t.Errorf("a process that writes: %v: %s", err, complaints)
			}
		})
	}
	for range each {
		if _, err := f.View(t.Context()); err != nil {
			t.Errorf("View = %v", err)
		}
	}
	wg.Wait()
	if n := requests(view(t, f), shared); n != children*each {
		t.Errorf("%d writes are in the file, want %d", n, children*each)
	}
	if rows, problems := recorded(t, f); len(rows) != children*each || problems != "" {
		t.Errorf("%d rows are recorded, want %d; %s", len(rows), children*each, problems)
	}
	if log.String() != "" || len(aside(t, path)) > 0 {
		t.Errorf("log: %s", log)
	}
}

// TestKilled kills a writing process again and again: what it reported as written is there, at most
// one write more, and nothing is damaged. Each write has a row, and at most one row is about what
// was not done.
func TestKilled(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, log := open(t, path)
	account := id.New[id.Account]()
	r := rand.New(rand.NewPCG(7, 0))
	const rounds = 25
	for round := range rounds {
		cmd, out, complaints := startChild(t, path, account, 1_000_000)
		said := int64(0)
		for range 1 + r.IntN(12) {
			if !out.Scan() {
				t.Fatalf("round %d: it has ended: %s", round, complaints)
			}
			n, err := strconv.ParseInt(out.Text(), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			said = n
		}
		sha256.Sum256(make([]byte, r.IntN(8<<20))) // so as not to be in step with its writes
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for out.Scan() { // what it had said before
			n, err := strconv.ParseInt(out.Text(), 10, 64)
			if err == nil {
				said = n
			}
		}
		_ = cmd.Wait() // killed
		got := requests(view(t, f), account)
		if got < said || got > said+1 || complaints.Len() > 0 {
			t.Fatalf("round %d: %d writes are there after %d were said to be; complaints %s", round, got, said, complaints)
		}
	}
	rows, problems := recorded(t, f)
	if n := len(rows) - int(requests(view(t, f), account)); n < 0 || n > rounds || problems != "" {
		t.Errorf("%d rows more than writes, want 0 to %d; %s", n, rounds, problems)
	}
	mustAdd(t, f, "after all")
	if log.String() != "" || len(aside(t, path)) > 0 {
		t.Errorf("log: %s", log)
	}
}
