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

// WhyUnreachable explains to people why a request did not reach a provider; it is empty if the
// error says nothing that would help them.
func WhyUnreachable(err error) string {
	dns, isDNS := errors.AsType[*net.DNSError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	netErr, isNet := errors.AsType[net.Error](err)
	switch {
	case isDNS && dns.IsNotFound:
		return "there is no host with this name"
	case isDNS:
		return "its name could not be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there (connection refused)"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to it"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it closed the connection"
	case notTLS:
		return "it does not speak TLS: should the base URL begin with http?"
	case otherName:
		return "its certificate is for another host"
	case untrusted:
		return "its certificate is not trusted"
	case errors.Is(err, os.ErrDeadlineExceeded), isNet && netErr.Timeout():
		return "the connection took too long"
	}
	return ""
}

// reachable returns " at" and an account's host if everyone who may use the account may know
// it: not if the operator chose it in a network of their own.
func reachable(a *pool.Account) string {
	if own := a.Profile.BaseURL; a.Own || own != nil && a.Base.Host == own.Host || target.IsLoopback(a.Base.Hostname()) {
		return " at " + a.Base.Host
	}
	return ""
}
