package canary_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// readsMemory reports whether memories works here. Only root can read the broker's memory.
const readsMemory = true

var readsBroker = os.Geteuid() == 0

// memories searches all writable memory of the processes: heaps, stacks with arguments and
// environments, and shared memory.
func memories(t *testing.T, all *marks, w *world.World) {
	t.Helper()
	shared := map[string]bool{}
	for _, p := range w.Procs() {
		memoryOf(t, all, p, shared)
	}
	pids := append(children(t, w.Postgres.PID()), w.Postgres.PID())
	for _, pid := range pids {
		// Processes of the database may end meanwhile.
		if err := memory(all, "memory of postgres", pid, shared); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("read the memory of postgres: %v", err)
		}
	}
}

// memoryOf searches the memory of a process of the world.
func memoryOf(t *testing.T, all *marks, p *world.Proc, shared map[string]bool) {
	t.Helper()
	err := memory(all, "memory of "+p.Name(), p.PID(), shared)
	if p.Service == subject.CredentialBroker && !readsBroker {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("the memory of %s can be read by its user: %v", p.Name(), err)
		}
		return
	}
	if err != nil {
		t.Errorf("read the memory of %s: %v", p.Name(), err)
	}
}

func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent
		var state string
		var of int
		_, rest, _ := bytes.Cut(b, []byte(") "))
		if _, err := fmt.Sscan(string(rest), &state, &of); err == nil && of == parent {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name))) // the pattern has digits alone
			pids = append(pids, pid)
		}
	}
	return pids
}

// memory searches the memory of a process. Shared memory is read once.
func memory(all *marks, place string, pid int, shared map[string]bool) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer func() { _ = mem.Close() }() // it was only read
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || !strings.HasPrefix(fields[1], "rw") {
			continue
		}
		if strings.HasSuffix(fields[1], "s") {
			key := strings.Join(fields[2:5], " ")
			if shared[key] {
				continue
			}
			shared[key] = true
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseInt(from, 16, 64)
		end, err2 := strconv.ParseInt(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		// Unmapped or unreadable memory is skipped.
		_, _ = io.CopyBuffer(&stream{marks: all, place: place}, onlyReader{io.NewSectionReader(mem, start, end-start)}, make([]byte, 1<<20))
	}
	return nil
}

// onlyReader hides the WriteTo of a reader, which would ignore the buffer.
type onlyReader struct{ io.Reader }
