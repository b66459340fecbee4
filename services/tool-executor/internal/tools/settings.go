package tools

import (
	"errors"
	"fmt"
	"regexp"
)

// Settings are what an operator can set about single tools.
type Settings struct {
	MaxEvents           int    `env:"GCAL_MAX_EVENTS" envDefault:"50" doc:"Most events that calendar_list_events returns at once."`
	MaxEventDescription int    `env:"GCAL_MAX_EVENT_DESCRIPTION" envDefault:"140" doc:"Characters to which calendar_list_events shortens descriptions, unless a call asks for another length."`
	MaxTasks            int    `env:"GTASKS_MAX_TASKS" envDefault:"50" doc:"Most tasks that tasks_list returns at once."`
	TasksTimeoutMS      int    `env:"GTASKS_TIMEOUT_MS" envDefault:"10000" doc:"How long Google Tasks may take to answer, in milliseconds."`
	ResearchRepo        string `env:"RESEARCH_REPO" doc:"GitHub repository that read_research reads, as owner/name; only files below ideas/ can be read. Empty for none: the tool is unavailable then."`
	ResearchRef         string `env:"RESEARCH_REF" doc:"Branch, tag or commit of RESEARCH_REPO; empty for the default branch."`
}

var repoForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$`)

// Validate says what is wrong, and what would be right.
func (s *Settings) Validate() error {
	var errs []error
	for _, v := range []struct {
		name       string
		value, max int
	}{
		{"GCAL_MAX_EVENTS", s.MaxEvents, 250},
		{"GCAL_MAX_EVENT_DESCRIPTION", s.MaxEventDescription, 2000},
		{"GTASKS_MAX_TASKS", s.MaxTasks, 100},
		{"GTASKS_TIMEOUT_MS", s.TasksTimeoutMS, 30_000},
	} {
		if v.value < 1 || v.value > v.max {
			errs = append(errs, fmt.Errorf("%s is %d: use 1 to %d", v.name, v.value, v.max))
		}
	}
	if s.ResearchRepo != "" && !repoForm.MatchString(s.ResearchRepo) {
		errs = append(errs, fmt.Errorf("RESEARCH_REPO is %q: use owner/name", s.ResearchRepo))
	}
	return errors.Join(errs...)
}
