package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"syscall"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/target"
)

// WhyUnreachable says for people what kept a request from a provider; it is empty where an
// error says nothing that would help them.
func WhyUnreachable(err error) string {
	dns, isDNS := errors.AsType[*net.DNSError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	switch {
	case isDNS && dns.IsNotFound:
		return "no host has this name"
	case isDNS:
		return "its name could not be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there (connection refused)"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no network leads there"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it closed the connection"
	case plain:
		return "it does not speak TLS: is the base URL's https meant to be http?"
	case otherName:
		return "its certificate is another host's"
	case untrusted:
		return "its certificate is not trusted"
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return "the connection took too long"
	}
	return ""
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// where names an account's host, if everybody who may use the account may know it: not where
// the operator has chosen it in a network of their own.
func where(a *pool.Account) string {
	known := a.Own || a.Base.Host == hostOf(a) || target.IsLoopback(a.Base.Hostname())
	if !known {
		return ""
	}
	return " at " + a.Base.Host
}

func hostOf(a *pool.Account) string {
	if a.Profile.BaseURL == nil {
		return ""
	}
	return a.Profile.BaseURL.Host
}
