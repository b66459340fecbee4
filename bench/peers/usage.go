package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// cpu returns the time that a process has spent on processors so far, in
// nanoseconds as Linux's scheduler counts them.
func cpu(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("the CPU time of process %d cannot be read: this needs Linux's /proc, and the process", pid)
	}
	var sum int64
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // a thread that has ended
		}
		first, _, _ := bytes.Cut(b, []byte(" "))
		n, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", t, err)
		}
		sum += n
	}
	return time.Duration(sum), nil
}

// load is how a machine and the programs of this measurement spent their time.
type load struct{ busy, all, own time.Duration }

// tick is the unit of /proc/stat on every Linux that Go knows.
const tick = 10 * time.Millisecond

// busy returns what was spent so far.
func (w *world) busy() (load, error) {
	var l load
	for _, pid := range append([]int{os.Getpid(), w.up}, w.pids()...) {
		d, err := cpu(pid)
		if err != nil {
			return l, err
		}
		l.own += d
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return l, fmt.Errorf("read the machine's load: %w", err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	for i, field := range bytes.Fields(line)[1:] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return l, fmt.Errorf("read the machine's load: %w", err)
		}
		l.all += time.Duration(n) * tick
		if i != 3 && i != 4 { // idle, and waiting for disks
			l.busy += time.Duration(n) * tick
		}
	}
	return l, nil
}

func (w *world) pids() []int {
	var pids []int
	for _, v := range w.all {
		if v.pid != 0 {
			pids = append(pids, v.pid)
		}
	}
	return pids
}

// others returns the part of the machine that other programs used since before.
func (l load) others(before load) float64 {
	return max(0, float64(l.busy-before.busy-(l.own-before.own))/float64(l.all-before.all))
}

// resident returns a process's memory in bytes: now, and at most so far.
func resident(pid int) (now, peak int64, err error) {
	if pid == 0 {
		return 0, 0, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(b) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		var kb int64
		switch string(name) {
		case "VmRSS", "VmHWM":
			if _, err := fmt.Sscan(string(rest), &kb); err != nil {
				return 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
		}
		switch string(name) {
		case "VmRSS":
			now = kb << 10
		case "VmHWM":
			peak = kb << 10
		}
	}
	return now, peak, nil
}
