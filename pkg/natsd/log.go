package natsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLog passes the server's log to slog, and keeps the messages that explain a failed
// start.
type serverLog struct {
	log   *slog.Logger
	fatal chan error // holds the first fatal message

	mu      sync.Mutex // guards warning
	warning string
}

func newServerLog(log *slog.Logger) *serverLog {
	return &serverLog{log: log.With("component", "nats-server"), fatal: make(chan error, 1)}
}

func (l *serverLog) write(level slog.Level, format string, v []any) string {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	l.log.Log(context.Background(), level, "nats server", "text", text)
	return text
}

func (l *serverLog) lastWarning() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.warning
}

// Noticef implements server.Logger. The server's notices only matter for debugging.
func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Warnf implements server.Logger.
func (l *serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		return // they are generated for this run
	}
	text := l.write(slog.LevelWarn, format, v)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warning = text
}

// Fatalf implements server.Logger. It does not end the process.
func (l *serverLog) Fatalf(format string, v ...any) {
	text := l.write(slog.LevelError, format, v)
	select {
	case l.fatal <- errors.New(text):
	default:
	}
}

// Errorf implements server.Logger.
func (l *serverLog) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v) }

// Debugf implements server.Logger.
func (l *serverLog) Debugf(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Tracef implements server.Logger.
func (l *serverLog) Tracef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
