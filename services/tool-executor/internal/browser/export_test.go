package browser

import (
	"log/slog"
	"net"
	"os"
	"syscall"

	"signalbox.dev/pkg/id"
)

// NewWith returns a Service whose proxies look up names with resolver, and whose browsers have
// no network namespace unless namespace is set.
func NewWith(settings Settings, log *slog.Logger, resolver *net.Resolver, namespace bool) (*Service, error) {
	s, err := newService(settings, log, resolver)
	if err == nil && !namespace {
		s.probe.Do(func() {})
	}
	return s, err
}

// Isolated reports whether browsers have a network namespace.
func (s *Service) Isolated() bool {
	s.probe.Do(func() {})
	return s.launcher.bwrap != ""
}

// Process returns the process of a workspace's browser; nil without one.
func (s *Service) Process(ws id.Workspace) *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workspaces[ws]
	if w == nil || w.process == nil || !w.process.alive() {
		return nil
	}
	return w.process.main.Browser.Process()
}

// Signal sends a signal to all processes of a workspace's browser.
func (s *Service) Signal(ws id.Workspace, sig syscall.Signal) error {
	return syscall.Kill(-s.Process(ws).Pid, sig)
}

// Find is find.
func Find() (string, error) { return find(os.Getenv("CHROMIUM")) }

// NewFolder makes a browser's folder, which stays locked until unlock is called.
func NewFolder() (path string, unlock func(), err error) {
	d, err := newFolder()
	if err != nil {
		return "", nil, err
	}
	return d.path, func() { _ = d.lock.Close() }, nil
}
