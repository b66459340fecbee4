package httpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
)

// CheckHealth requests /health from the server that listens on addr on this machine, with TLS if
// it is secure. It is the health check of containers without a shell.
func CheckHealth(ctx context.Context, addr string, secure bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("health check of %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+"/health", nil)
	if err != nil {
		return fmt.Errorf("health check of %q: %w", addr, err)
	}
	// The certificate is that of this container, for another name than this address, and nothing
	// secret is sent.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // as above
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("health check: %s responds with %s", req.URL, res.Status)
	}
	return nil
}
