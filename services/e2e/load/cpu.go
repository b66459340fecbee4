package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// clockTick is the unit of the times in /proc on all common Linux systems.
const clockTick = 10 * time.Millisecond

// processor returns the processor time that a process and its children have used. PostgreSQL's
// connections are its children.
func processor(pid int) (time.Duration, error) {
	used, err := stat(pid)
	if err != nil {
		return 0, err
	}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, file := range children {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		for field := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				if more, err := processor(child); err == nil {
					used += more
				}
			}
		}
	}
	return used, nil
}

// stat returns a process's own time and that of its children that have ended.
func stat(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ") // the name, which may contain anything, ends here
	fields := strings.Fields(rest)
	if !ok || len(fields) < 15 {
		return 0, errors.New("read the processor time: /proc is not as on Linux")
	}
	var ticks time.Duration
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += time.Duration(n)
	}
	return ticks * clockTick, nil
}

// resident returns a process's resident memory in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("read the memory of a process: /proc is not as on Linux")
}

// usage is the processor time of every part of a world.
func usage(w *world.World) map[string]time.Duration {
	used := map[string]time.Duration{}
	for _, p := range w.Procs() {
		if d, err := processor(p.PID()); err == nil {
			used[p.Name()] = d
		}
	}
	if d, err := processor(w.Postgres.PID()); err == nil {
		used[world.PostgresName] = d
	}
	return used
}
