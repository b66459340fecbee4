package upstream

import (
	"fmt"
	"net/http"
	"strconv"
)

// appendHead appends a request's head.
func appendHead(b []byte, req *http.Request) ([]byte, error) {
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	uri := req.URL.RequestURI()
	if !isToken(req.Method) || !isVisible(uri) || !isVisible(host) {
		return b, fmt.Errorf("%s %q at %q cannot be asked for over HTTP", req.Method, uri, host)
	}
	b = append(append(append(append(b, req.Method...), ' '), uri...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, host...), "\r\n"...)
	if _, ok := req.Header["Accept-Encoding"]; !ok {
		b = append(b, "Accept-Encoding: identity\r\n"...) // without it any coding would do
	}
	for name, values := range req.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection":
			continue
		}
		for _, v := range values {
			if !isToken(name) || !isValue(v) {
				return b, fmt.Errorf("the header %q cannot be sent", name) // not its value: it may be a secret
			}
			b = append(append(append(append(b, name...), ": "...), v...), "\r\n"...)
		}
	}
	if req.ContentLength > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), max(req.ContentLength, 0), 10), "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// isToken reports whether s can be a method or a header's name (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '!', c == '#', c == '$', c == '%', c == '&', c == '\'', c == '*', c == '+', c == '-', c == '.', c == '^', c == '_', c == '`', c == '|', c == '~':
		default:
			return false
		}
	}
	return s != ""
}

// isVisible reports whether s is visible ASCII throughout.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != ""
}

// isValue reports whether s can be a header's value: no control character but the
// tab (RFC 9110, 5.5).
func isValue(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
