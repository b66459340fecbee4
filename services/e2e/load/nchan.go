package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"signalbox.dev/pkg/freeport"
)

// nchan is nginx with the nchan module, from Debian's packages: the peer of the feed.
type nchan struct {
	cmd  *exec.Cmd
	addr string
	http *http.Client
}

var errNoNchan = errors.New("apt-get install nginx-light libnginx-mod-nchan")

// startNchan runs nginx in the foreground, on a free port.
func startNchan(dir string) (*nchan, error) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return nil, errNoNchan
		}
	}
	module := "/usr/lib/nginx/modules/ngx_nchan_module.so"
	if _, err := os.Stat(module); err != nil {
		return nil, errNoNchan
	}
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`load_module %[1]s;
daemon off;
user root;
worker_processes auto;
worker_rlimit_nofile 20000;
pid %[2]s/nginx.pid;
error_log %[2]s/error.log crit;
events { worker_connections 16000; }
http {
  access_log off;
  client_body_temp_path %[2]s/body;
  proxy_temp_path %[2]s/proxy;
  fastcgi_temp_path %[2]s/fastcgi;
  uwsgi_temp_path %[2]s/uwsgi;
  scgi_temp_path %[2]s/scgi;
  keepalive_requests 1000000000;
  nchan_max_reserved_memory 512M;
  nchan_message_buffer_length 512;
  nchan_message_timeout 60s;
  server {
    listen %[3]s;
    location = /pub { nchan_publisher; nchan_channel_id $arg_id; }
    location = /sub { nchan_subscriber eventsource; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }
  }
}
`, module, dir, addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	n := &nchan{cmd: exec.Command(nginx, "-c", config, "-p", dir), addr: addr, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	var out bytes.Buffer
	n.cmd.Stderr = &out
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return n, conn.Close()
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("nginx did not start: %w\n%s", err, &out), n.stop())
		}
	}
}

func (n *nchan) stop() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return n.cmd.Wait()
}

// publish sends one event to a channel's viewers.
func (n *nchan) publish(ctx context.Context, channel int) error {
	// As large as one of our events, with type and data.
	body := fmt.Sprintf(`{"type":"text-delta","delta":%q,"stepIndex":0,"runId":"01a20000-0000-7000-8000-000000000000"}`, payload())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/pub?id=%d", n.addr, channel), bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	res, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("publish to nchan: %s", res.Status)
	}
	return nil
}

func (n *nchan) viewer(channel int) target {
	return target{n.addr, fmt.Sprintf("GET /sub?id=%d HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", channel, n.addr)}
}

// liveNchan is liveOurs with nchan, which keeps messages in memory only.
func liveNchan(ctx context.Context, b *bench, sessions, viewers, rate int) (*delivered, error) {
	dir, err := os.MkdirTemp(b.dir, "nginx")
	if err != nil {
		return nil, err
	}
	n, err := startNchan(dir)
	if err != nil {
		return nil, err
	}
	defer quietly(n.stop)
	var targets []target
	for channel := range sessions {
		for range viewers {
			targets = append(targets, n.viewer(channel))
		}
	}
	workers := min(sessions, 8)
	cpu := func() map[string]time.Duration {
		d, err := processor(n.cmd.Process.Pid)
		if err != nil {
			return nil
		}
		return map[string]time.Duration{"nginx": d}
	}
	return b.deliver(ctx, targets, cpu, "nginx", rate, viewers, workers, func(ctx context.Context, worker, turn int) error {
		own := (sessions - worker + workers - 1) / workers
		return n.publish(ctx, worker+workers*(turn%own))
	})
}
