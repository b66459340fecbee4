package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/e2e/world"
)

// encryption checks, with -tls, that NATS and PostgreSQL refuse clients without TLS, and that the
// services refuse servers whose certificates another authority has signed.
func encryption(ctx context.Context, s *suite, r *result) error {
	if !s.tls {
		fmt.Fprintln(s.out, "left out: it needs -tls")
		return nil
	}
	if accepted, err := s.plainNATS(ctx); err != nil {
		return err
	} else if accepted {
		r.Broken = append(r.Broken, "NATS accepts a client without TLS")
	}
	plain, err := url.Parse(s.release.Database)
	if err != nil {
		return err
	}
	q := plain.Query()
	q.Set("sslmode", "disable")
	plain.RawQuery = q.Encode()
	if conn, err := pgx.Connect(ctx, plain.String()); err == nil {
		r.Broken = append(r.Broken, "PostgreSQL accepts a client without TLS")
		_ = conn.Close(ctx)
	} else if !strings.Contains(err.Error(), "no encryption") {
		return err
	}
	for _, value := range []string{"nats.caSecret", "database.caSecret"} {
		if err := s.impostor(ctx, value); err != nil {
			return fmt.Errorf("%s=impostor-tls: %w", value, err)
		}
	}
	return nil
}

// plainNATS reports whether a NATS server accepts a client with the right password that does not
// begin TLS.
func (s *suite) plainNATS(ctx context.Context) (bool, error) {
	address, err := s.address(ctx, "nats")
	if err != nil {
		return false, err
	}
	password, err := s.secret(ctx, "signalbox-secrets", "GATEWAY_NATS_PASSWORD")
	if err != nil {
		return false, err
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(address, "4222"))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return false, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"user\":\"gateway\",\"pass\":%q}\r\nPING\r\n", password); err != nil {
		return false, err
	}
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		switch {
		case strings.HasPrefix(line, "PONG"):
			return true, nil
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return false, nil
		case err != nil:
			return false, err
		}
	}
}

// impostor takes another authority for that of a server, waits until every service has said in its
// log that it refuses the server, and takes the first authority again. Meanwhile the previous pods
// work on.
func (s *suite) impostor(ctx context.Context, value string) error {
	if err := s.chart(ctx, "upgrade", "", "--set", "migration.enabled=false", "--set", value+"=impostor-tls"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for _, service := range world.Services() {
		said, err := s.logged(ctx, service, "certificate signed by unknown authority")
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, said)
	}
	return errors.Join(s.answer(ctx), s.helm(ctx, "rollback", "signalbox", "--wait", "--timeout", patience.String()))
}

// logged waits until a pod of a service has logged a line with a text, and returns the line.
func (s *suite) logged(ctx context.Context, service, text string) (string, error) {
	for {
		// A container that waits for its next start has the log of its last one, or for a moment none.
		out, _ := s.kubectl(ctx, "logs", "--prefix", "--tail=1000", "-l", "app.kubernetes.io/component="+service)
		for line := range strings.Lines(out) {
			if strings.Contains(line, text) {
				return strings.TrimSpace(line), nil
			}
		}
		if err := sleep(ctx, time.Second); err != nil {
			return "", fmt.Errorf("%s logs no %q: %w", service, text, err)
		}
	}
}
