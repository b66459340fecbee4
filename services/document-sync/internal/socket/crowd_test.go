package socket_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestMain turns this program into a crowd of clients when it is asked to be one: in a
// process of their own they cost nothing where costs are measured.
func TestMain(m *testing.M) {
	if target := os.Getenv("SOCKET_TEST_CROWD"); target != "" {
		n, err := strconv.Atoi(os.Getenv("SOCKET_TEST_CROWD_SIZE"))
		if err == nil {
			err = beCrowd(target, n)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "crowd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beCrowd connects n times, says so, and reads and forgets until stdin ends.
func beCrowd(target string, n int) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	hello := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", u.RequestURI(), u.Host)
	for range n {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", u.Host)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(c, hello); err != nil {
			return err
		}
		r := bufio.NewReaderSize(c, 256)
		line, err := r.ReadString('\n')
		if err != nil || !strings.Contains(line, " 101 ") {
			return fmt.Errorf("the server said %q, %w", line, err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
	}
	fmt.Fprintln(os.Stdout, "here")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// crowd connects n clients of another process.
func crowd(t testing.TB, w *world, path string, n int) {
	t.Helper()
	had := w.handler.Count()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "SOCKET_TEST_CROWD="+"http"+strings.TrimPrefix(w.url, "ws")+path, "SOCKET_TEST_CROWD_SIZE="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
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
		in.Close()
		_ = cmd.Wait() // it has said what was wrong
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "here\n" {
		t.Fatalf("the crowd did not come: %q, %v", line, err)
	}
	eventually(t, "all are counted", func() bool { return w.handler.Count() >= had+n })
}
