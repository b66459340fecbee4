package simulator

import (
	"errors"
	"fmt"
)

const (
	defaultRequests = 256
	defaultMaxBody  = 32 << 20
)

// Config has the simulator's settings. The zero value is for tests and benchmarks: the
// built-in script without delays.
type Config struct {
	Addr     string  `env:"SIMULATOR_ADDR" envDefault:"127.0.0.1:8089" doc:"Address of the HTTP listener; it has no authentication, so keep it off the public network."`
	Script   string  `env:"SIMULATOR_SCRIPT" doc:"A script (YAML file), which becomes the default one, or a directory of them; empty plays the built-in script."`
	Services bool    `env:"SIMULATOR_SERVICES" envDefault:"false" doc:"Also serves fakes of Google Calendar, Google Tasks, Notion and GitHub's contents, under /google, /notion and /github."`
	Pace     float64 `env:"SIMULATOR_PACE" envDefault:"1" doc:"Factor on every scripted delay: 1 as written, 0 for none, 2 for half the speed. Stalls are not scaled."`
	Requests int     `env:"SIMULATOR_REQUESTS" envDefault:"256" doc:"How many requests are kept for GET /simulator/requests."`
	MaxBody  int64   `env:"SIMULATOR_MAX_BODY" envDefault:"33554432" doc:"Maximum size of a request body in bytes; a larger one is answered with 413."`
}

// Validate returns every problem with the settings.
func (c Config) Validate() error {
	var errs []error
	if !(c.Pace >= 0 && c.Pace <= 1000) {
		errs = append(errs, fmt.Errorf("SIMULATOR_PACE is %v: use a factor from 0 to 1000", c.Pace))
	}
	if c.Requests < 0 || c.Requests > 100_000 {
		errs = append(errs, fmt.Errorf("SIMULATOR_REQUESTS is %d: use 1 to 100000", c.Requests))
	}
	if c.MaxBody < 0 || c.MaxBody > 1<<30 {
		errs = append(errs, fmt.Errorf("SIMULATOR_MAX_BODY is %d: use 1 to %d", c.MaxBody, 1<<30))
	}
	return errors.Join(errs...)
}
