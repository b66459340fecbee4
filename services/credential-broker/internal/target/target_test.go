package target_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/target"
)

func TestParse(t *testing.T) {
	t.Parallel()
	open, strict, local := target.Policy{AllowPrivate: true}, target.Policy{}, target.Policy{Loopback: true}
	tests := []struct {
		in     string
		policy target.Policy
		want   string // part of the error; "" for none
	}{
		{"https://api.example.com", strict, ""},
		{"https://api.example.com:443/v1/", strict, ""},
		{"https://api.example.com:/v1/", strict, ""},
		{"https://api.example.com:8443/v1/", strict, "port must be 443"},
		{"https://api.example.com:22", strict, "port must be 443"},
		{"https://api.example.com:8443/v1/", open, ""},
		{"https://api.example.com:8443/v1/", strict.For(true), ""},
		{"https://api.example.com:8443/v1/", strict.For(false), "port must be 443"},
		{"https://10.0.0.1:8443", strict.For(true), "loopback or private"},
		{"http://api.example.com:8443", strict.For(true), "must begin with https"},
		{"https://api.example.com:0", open, "from 1 to 65535"},
		{"https://api.example.com:99999", open, "from 1 to 65535"},
		{"https://api.example.com:65535", open, ""},
		{"https://bücher.example/v1", strict, "xn--"},
		{"https://b%C3%BCcher.example/v1", strict, "xn--"},
		{"https://xn--bcher-kva.example/v1", strict, ""},
		{"https://api_1.example.com/v1", strict, ""},
		{"https://api,example.com/v1", strict, "xn--"},
		{"https://93.184.216.34/v1", strict, ""},
		{"http://api.example.com", strict, "must begin with https"},
		{"http://api.example.com", open, "must begin with https"},
		{"http://127.0.0.1:11434/v1", strict, "must begin with https"},
		{"http://127.0.0.1:11434/v1", open, ""},
		{"http://localhost:8000", open, ""},
		{"http://ollama:11434", open, ""},
		{"http://model.default.svc.cluster.local", open, ""},
		{"http://[::1]:1", open, ""},
		{"http://localhost:11434/v1", local.For(true), ""},
		{"http://LOCALHOST.:11434/v1", local.For(true), ""},
		{"http://127.0.0.1:8000", local.For(true), ""},
		{"http://[::1]:1234/v1", local.For(true), ""},
		{"http://localhost:11434/v1", local.For(false), "must begin with https"},
		{"https://127.0.0.1", local.For(false), "loopback or private"},
		{"http://10.0.0.1:8000", local.For(true), "must begin with https"},
		{"http://ollama:11434", local.For(true), "must begin with https"},
		{"http://localhost.example.com", local.For(true), "must begin with https"},
		{"http://169.254.169.254", local.For(true), "must begin with https"},
		{"ftp://localhost", local.For(true), "use https"},
		{"http://user@localhost", local.For(true), "not contain a user or password"},
		{"https://10.0.0.1", strict, "loopback or private"},
		{"https://10.0.0.1", open, ""},
		{"https://169.254.169.254", strict, "loopback or private"},
		{"http://169.254.169.254/latest", open, "not a public address"},
		{"http://[fd00:ec2::254]/latest", open, "not a public address"},
		{"https://168.63.129.16", open, "not a public address"},
		{"https://[::127.0.0.1]", strict, "loopback or private"},
		{"https://[4000::1]", open, "not a public address"},
		{"https://metadata.google.internal", strict, "loopback or private"},
		{"https://[::ffff:127.0.0.1]", strict, "loopback or private"},
		{"https://[64:ff9b::7f00:1]", strict, "loopback or private"},
		{"https://[fe80::1%25eth0]", open, "not a public address"},
		{"https://user:pass@api.example.com", strict, "not contain a user or password"},
		{"https://api.example.com?key=1", strict, "without ? or #"},
		{"https://api.example.com#x", strict, "without ? or #"},
		{"https://api.example.com/a/../b", strict, "as a segment of its path"},
		{"ftp://api.example.com", strict, "use https"},
		{"api.example.com", strict, "not a URL"},
		{"https://", strict, "not a URL"},
		{"https://:443/", strict, "no host"},
		{"https:opaque", strict, "not a URL"},
		{"", strict, "not a URL"},
		{"https://x.example/" + strings.Repeat("a", 3000), strict, "longer than"},
	}
	for _, tt := range tests {
		u, err := tt.policy.Parse(tt.in)
		if tt.want == "" && (err != nil || strings.HasSuffix(u.Path, "/")) {
			t.Errorf("Parse(%q) = %v, %v, want a URL without a slash at the end", tt.in, u, err)
		}
		if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Parse(%q) = %v, %v, want an error with %q", tt.in, u, err, tt.want)
		}
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	tests := []struct {
		addr         string
		strict, open bool // allowed
	}{
		{"93.184.216.34:443", true, true},
		{"[2606:2800:220:1::1]:443", true, true},
		{"127.0.0.1:80", false, true},
		{"10.1.2.3:443", false, true},
		{"[::1]:443", false, true},
		{"[fd00::1]:443", false, true},
		{"[::ffff:10.0.0.1]:443", false, true},
		{"[64:ff9b::a00:1]:443", false, true},
		{"169.254.169.254:80", false, false},
		{"[fe80::1%lo]:443", false, false},
		{"0.0.0.0:80", false, false},
		{"[::]:80", false, false},
		{"100.64.0.1:443", false, false},
		{"224.0.0.1:443", false, false},
		{"255.255.255.255:443", false, false},
		{"[2002:7f00:1::]:443", false, false},
		{"93.184.216.34:80", true, true},
		{"93.184.216.34:8443", false, true},
		{"10.1.2.3:11434", false, true},
		{"[fd00:ec2::254]:80", false, false},
		{"[fd00:ec2::23]:443", false, false},
		{"[fd20:ce::254]:80", false, false},
		{"168.63.129.16:80", false, false},
		{"[::ffff:168.63.129.16]:80", false, false},
		{"[64:ff9b::a83f:8110]:443", false, false},
		{"[64:ff9b::5db8:d822]:443", true, true},
		{"[::ffff:93.184.216.34]:443", true, true},
		{"[::127.0.0.1]:443", false, false},
		{"[::93.184.216.34]:443", false, false},
		{"[::ffff:0:127.0.0.1]:443", false, false},
		{"[64:ff9b:1::1]:443", false, false},
		{"[100::1]:443", false, false},
		{"[2001:db8::1]:443", false, false},
		{"[3fff::1]:443", false, false},
		{"[4000::1]:443", false, false},
		{"[5f00::1]:443", false, false},
		{"[fec0::1]:443", false, false},
		{"[ff02::1]:443", false, false},
		{"not an address", false, false},
	}
	for _, tt := range tests {
		for _, p := range []struct {
			policy target.Policy
			want   bool
		}{{target.Policy{}, tt.strict}, {target.Policy{AllowPrivate: true}, tt.open}} {
			err := p.policy.Control("tcp", tt.addr, nil)
			if (err == nil) != p.want || (err != nil && !errors.Is(err, target.ErrAddress)) {
				t.Errorf("%+v.Control(%q) = %v, want allowed %v", p.policy, tt.addr, err, p.want)
			}
		}
	}
}

// For any base URL that names an address, Control allows what Parse allows, and nothing passes
// that is not https or private.
func FuzzParse(f *testing.F) {
	f.Add("https://[64:ff9b::7f00:1]:1/x", false)
	f.Add("http://2130706433/", true)
	f.Fuzz(func(t *testing.T, text string, allow bool) {
		p := target.Policy{AllowPrivate: allow}
		u, err := p.Parse(text)
		if err != nil {
			return
		}
		if u.Scheme == "http" && !allow {
			t.Fatalf("Parse(%q) allows http", text)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			if err := p.Control("tcp", netip.AddrPortFrom(a, 443).String(), nil); err != nil {
				t.Fatalf("Parse(%q) allows what Control refuses: %v", text, err)
			}
		}
	})
}
