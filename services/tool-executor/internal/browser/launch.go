package browser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/chromedp"
)

// nobody is the user that runs the browser when we are root.
const nobody = 65534

// places are where Chromium and Chrome are installed, as names and paths.
var places = map[string][]string{
	"linux":  {"chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"},
	"darwin": {"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"},
}

// find returns the path of Chromium: the operator's choice, or the first of the usual places.
func find(chosen string) (string, error) {
	if chosen != "" {
		path, err := exec.LookPath(chosen)
		if err != nil {
			return "", fmt.Errorf("there is no program %s: set CHROMIUM to that of Chromium or Google Chrome", chosen)
		}
		return path, nil
	}
	for _, name := range places[runtime.GOOS] {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("neither Chromium nor Google Chrome is installed: the operator installs one, or sets CHROMIUM")
}

// launcher knows how browsers are started on this machine.
type launcher struct {
	chromium  string
	bwrap     string   // empty: without a network namespace
	proc      []string // arguments of bwrap that mount /proc
	self      *os.File // our program, which starts the browser in its namespace; nil without bwrap
	noSandbox bool
}

// listen returns the listener of a browser's proxy, and the address at which the browser finds it.
func (l *launcher) listen(dir string) (net.Listener, string, error) {
	if l.bwrap == "" {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, "", err
		}
		return tcp, tcp.Addr().String(), nil
	}
	path := socketIn(dir)
	unix, err := net.Listen("unix", path)
	if err != nil {
		return nil, "", err
	}
	if os.Geteuid() == 0 {
		err = os.Chown(path, nobody, nobody)
	}
	return unix, relayAddr, err
}

func socketIn(dir string) string { return filepath.Join(dir, "proxy.sock") }

// features are what Chromium does without being asked, and what would not go through a proxy.
var features = strings.Join([]string{
	"AsyncDns", "DnsOverHttps", "EncryptedClientHello", "NetworkPrediction", "PreconnectToSearch", "Prerender2", "SpeculationRulesPrefetchFuture",
	"MediaRouter", "DialMediaRouteProvider", "CastMediaRouteProvider", "OptimizationHints", "OptimizationGuideModelDownloading", "Translate",
	"AutofillServerCommunication", "CertificateTransparencyComponentUpdater", "InterestFeedContentSuggestions", "WebRtcHideLocalIpsWithMdns",
	"DirectSockets", "WebTransport", "WebUSB", "WebBluetooth",
}, ",")

// options are the arguments of a browser whose proxy is at an address.
func (l *launcher) options(dir, proxy string) []chromedp.ExecAllocatorOption {
	flags := map[string]any{
		"headless": "new", "user-data-dir": filepath.Join(dir, "profile"), "window-size": fmt.Sprintf("%d,%d", width, height),
		"no-first-run": true, "no-default-browser-check": true, "disable-gpu": true, "disable-dev-shm-usage": true, "mute-audio": true, "hide-scrollbars": true,
		"password-store": "basic", "use-mock-keychain": true, "deny-permission-prompts": true, "disable-notifications": true, "disable-external-intent-requests": true,
		"js-flags": "--max-old-space-size=512", "renderer-process-limit": "8", "disk-cache-size": "33554432", "disable-crash-reporter": true, "disable-breakpad": true,
		"disable-background-networking": true, "disable-component-update": true, "disable-component-extensions-with-background-pages": true, "disable-extensions": true,
		"disable-default-apps": true, "disable-sync": true, "disable-domain-reliability": true, "disable-client-side-phishing-detection": true, "no-pings": true,
		"metrics-recording-only": true, "safebrowsing-disable-auto-update": true, "disable-field-trial-config": true, "disable-ipc-flooding-protection": false,
		"disable-features": features,

		// Nothing leaves the browser but through the proxy, which also resolves all names.
		"proxy-server": "http://" + proxy, "proxy-bypass-list": "<-loopback>", "host-resolver-rules": "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"disable-quic": true, "dns-prefetch-disable": true, "force-webrtc-ip-handling-policy": "disable_non_proxied_udp", "webrtc-ip-handling-policy": "disable_non_proxied_udp",

		"no-sandbox": l.noSandbox,
	}
	names := make([]string, 0, len(flags))
	for name := range flags {
		names = append(names, name)
	}
	slices.Sort(names)
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(l.chromium), chromedp.NoInheritEnv, // our environment has secrets
		chromedp.Env("HOME="+dir, "TMPDIR="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir, "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "DBUS_SESSION_BUS_ADDRESS=disabled:"),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { l.contain(cmd, dir) }),
	}
	for _, name := range names {
		options = append(options, chromedp.Flag(name, flags[name]))
	}
	return options
}

// contain changes the command of a browser so that it runs as an ordinary user, dies with us,
// and is alone in its namespaces.
func (l *launcher) contain(cmd *exec.Cmd, dir string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	cmd.Dir = dir
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if l.bwrap == "" {
		return
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, l.self)
	program := fmt.Sprintf("/proc/self/fd/%d", 2+len(cmd.ExtraFiles))
	command := append([]string{program, relayCommand, socketIn(dir), cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Args = l.bwrap, append(append([]string{"bwrap"}, l.namespaces(dir)...), command...)
}

// namespaces are the arguments of bubblewrap: what a browser sees of the machine.
func (l *launcher) namespaces(dir string) []string {
	args := append([]string{"--unshare-all", "--die-with-parent", "--new-session", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"}, l.proc...)
	for _, path := range []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/etc/fonts", "/etc/alternatives", "/etc/ld.so.cache", "/etc/chromium", "/etc/chromium.d",
		"/etc/passwd", "/etc/group", "/etc/localtime", filepath.Dir(l.chromium),
	} {
		args = append(args, "--ro-bind-try", path, path)
	}
	return append(args, "--bind", dir, dir, "--chdir", dir, "--")
}

// probeTime bounds the attempt to use bubblewrap.
const probeTime = 5 * time.Second

// procs are the ways to mount /proc. In a container whose /proc has masked parts, the kernel refuses
// a new one; Chromium then has the container's, and still cannot signal the processes that it sees there.
var procs = [][]string{{"--proc", "/proc"}, {"--bind", "/proc", "/proc"}}

// isolate makes l use bubblewrap, if that makes namespaces here.
func (l *launcher) isolate(ctx context.Context) error {
	if !relayReady {
		return errors.New("this program does not call Relay")
	}
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return err
	}
	dir, err := newFolder()
	if err != nil {
		return err
	}
	defer func() { _ = dir.remove() }() // it is empty
	var errs []error
	for _, l.proc = range procs {
		if err = l.try(ctx, bwrap, dir.path); err == nil {
			break
		}
		errs = append(errs, err)
	}
	if err != nil {
		return errors.Join(errs...)
	}
	// The file itself, because other users may not enter its folder.
	l.self, err = os.Open("/proc/self/exe")
	if err == nil {
		l.bwrap = bwrap
	}
	return err
}

// try reports why bubblewrap does not make the namespaces.
func (l *launcher) try(ctx context.Context, bwrap, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, bwrap, append(l.namespaces(dir), "/bin/true")...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
