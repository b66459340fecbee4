package oauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// sanitize returns what went wrong with a request in fixed words. The errors of net/http quote
// what a server has answered if that is no HTTP, which may be tokens, and its URL, which may
// hold an operator's secret; those of certificates quote what a stranger has put there.
// Nothing of the former error is kept, not even its chain.
func sanitize(err error) error {
	var (
		dns       *net.DNSError
		number    syscall.Errno
		name      x509.HostnameError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		op        *net.OpError
	)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return errors.New("the request was cancelled")
	case errors.As(err, &dns):
		if dns.IsNotFound {
			return errors.New("there is no host with that name")
		}
		return errors.New("its name could not be looked up")
	case timedOut(err):
		return errors.New("it took too long")
	case errors.As(err, &number):
		return errors.New(number.Error()) // the operating system's own list
	case errors.As(err, &name):
		return errors.New("its certificate is for another host")
	case errors.As(err, &authority):
		return errors.New("its certificate is from an unknown authority")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return errors.New("its certificate has expired, or is not valid yet")
	case errors.As(err, &invalid):
		return errors.New("its certificate is not valid")
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("it does not speak TLS")
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls: an alert
		return errors.New("it refused the TLS connection")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the connection was closed")
	}
	return errors.New("the answer is not HTTP")
}

func timedOut(err error) bool {
	var late interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
}
