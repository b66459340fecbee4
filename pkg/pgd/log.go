package pgd

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"os"
	"sync"
)

// maxLine is how many bytes of a line of the server's log are kept.
const maxLine = 4 << 10

// relay reads the server's log until the server's last process has ended. It must not block,
// because a server that cannot write its log stops working.
func (s *Server) relay(ctx context.Context, stderr *os.File) {
	defer func() { _ = stderr.Close() }()
	ready := sync.OnceFunc(func() { close(s.ready) })
	in := bufio.NewReaderSize(stderr, maxLine)
	for {
		line, more, err := in.ReadLine()
		if err != nil {
			return
		}
		for more && err == nil { // the rest of a line that is too long
			_, more, err = in.ReadLine()
		}
		if bytes.Contains(line, []byte("database system is ready to accept ")) {
			ready()
		}
		s.mu.Lock()
		s.tail.add(line)
		s.mu.Unlock()
		s.log.Log(ctx, level(line), "postgres", "line", string(line))
	}
}

// level returns the level of a line of the log. Clients report their own errors.
func level(line []byte) slog.Level {
	word, _, _ := bytes.Cut(line, []byte(":"))
	switch string(word) {
	case "PANIC":
		return slog.LevelError
	case "WARNING":
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// explain turns the end of a log into the rest of an error message: advice if the cause is
// known, and what Postgres said.
func explain(log []byte) string {
	hint := ""
	for _, known := range [...]struct{ text, hint string }{
		{"No space left on device", "the disk is full: make room and start again. "},
		{"Permission denied", "a file is not accessible to the user that runs PostgreSQL: check owner and mode of the data folder. "},
		{"could not look up effective user ID", "the user has no entry in the system's user database: run as another user, or set DATABASE_URL. "},
		{"could not create shared memory segment", "the system gives too little shared memory: in a container, raise it (--shm-size). "},
		{"could not locate a valid checkpoint record", "the data folder is damaged: restore it, or move it away to start empty. "},
	} {
		if bytes.Contains(log, []byte(known.text)) {
			hint = known.hint
			break
		}
	}
	if len(log) == 0 {
		return hint + "its log is empty"
	}
	return hint + "its last log lines:\n" + string(log)
}
