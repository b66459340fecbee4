package browser

import (
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/netguard"
)

// Settings are what an operator can set about the browser.
type Settings struct {
	Chromium     string        `env:"CHROMIUM" doc:"Program of Chromium or Google Chrome. Empty: the first one in the usual places."`
	Processes    int           `env:"BROWSER_PROCESSES" envDefault:"4" doc:"Most browsers that run at the same time, one for each workspace that uses one. Each needs about 300 MB, and more for large pages."`
	Pages        int           `env:"BROWSER_PAGES" envDefault:"8" doc:"Most open pages of a workspace, one for each session. The page that was not used for the longest time is closed for a new one."`
	Idle         time.Duration `env:"BROWSER_IDLE" envDefault:"10m" doc:"A page that no tool has used for this time is closed, and so is a browser without pages."`
	AllowPrivate string        `env:"BROWSER_ALLOW_PRIVATE" doc:"Private addresses that pages may come from, separated by commas: ranges (10.1.0.0/16) and hosts with a port (10.1.2.3:8080, wiki.internal:80). Every page that a model opens can send requests there, and what pages say counts as private data (security.md). A browser service and its tool-executors need the same value. Empty: public addresses only."`
	Example      string        // host:port of pages that may come from there too, and are no secret; not for operators
	NoSandbox    bool          `env:"BROWSER_NO_SANDBOX" doc:"Run Chromium without its own sandbox, where the system does not allow it. Only for a container or machine that runs nothing else: a page that breaks out of Chromium is then in there."`
}

// Validate says what is wrong, and what would be right.
func (s *Settings) Validate() error {
	var errs []error
	if s.Processes < 1 || s.Processes > 1000 {
		errs = append(errs, fmt.Errorf("BROWSER_PROCESSES is %d: use 1 to 1000", s.Processes))
	}
	if s.Pages < 1 || s.Pages > 100 {
		errs = append(errs, fmt.Errorf("BROWSER_PAGES is %d: use 1 to 100", s.Pages))
	}
	if s.Idle < time.Second || s.Idle > 24*time.Hour {
		errs = append(errs, fmt.Errorf("BROWSER_IDLE is %v: use 1s to 24h", s.Idle))
	}
	if _, err := netguard.ParseAllowed(s.AllowPrivate); err != nil {
		errs = append(errs, fmt.Errorf("BROWSER_ALLOW_PRIVATE: %w", err))
	}
	return errors.Join(errs...)
}
