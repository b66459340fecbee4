package freeport_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"testing"

	"signalbox.dev/pkg/freeport"
)

const (
	lend = "SIGNALBOX_LEND_PORTS" // makes the test binary print addresses, and then wait
	some = 250                    // addresses: more than a block has
)

func TestMain(m *testing.M) {
	if os.Getenv(lend) == "" {
		os.Exit(m.Run())
	}
	for range some {
		addr, err := freeport.Addr()
		if err != nil {
			os.Exit(1)
		}
		if _, err := os.Stdout.WriteString(addr + "\n"); err != nil {
			os.Exit(1)
		}
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test is done
}

// Four processes reserve addresses concurrently, this one from many goroutines.
func TestAddrIsUnique(t *testing.T) {
	t.Parallel()
	all := make(chan string)
	const others = 3
	for range others {
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
		cmd.Env = append(os.Environ(), lend+"=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("lender: %v", err)
			}
		})
		go func() {
			lines := bufio.NewScanner(out)
			for range some {
				lines.Scan()
				all <- lines.Text()
			}
		}()
	}
	for range some {
		go func() {
			addr, err := freeport.Addr()
			if err != nil {
				t.Errorf("Addr() = %v", err)
			}
			all <- addr
		}()
	}
	seen := map[string]bool{}
	for range (others + 1) * some {
		addr := <-all
		if seen[addr] {
			t.Errorf("%s was returned twice", addr)
		}
		seen[addr] = true
		if _, _, err := net.SplitHostPort(addr); err != nil {
			t.Errorf("Addr() = %q: %v", addr, err)
		}
	}
}
