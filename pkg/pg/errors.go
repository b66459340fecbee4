package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"signalbox.dev/pkg/fault"
)

// errBusy is the cause when no connection of the pool was free in time.
var errBusy = errors.New("no database connection in 5 s")

// errStandby is the cause when no server of the URL is a primary.
var errStandby = errors.New("the server is a standby: use the address of the primary, or list all servers (host=a,b with target_session_attrs=read-write)")

// unreachable returns an error with the server and the cause in one line. The error of pgx
// repeats both for every address and TLS mode that it tried.
func unreachable(cfg *pgconn.Config, err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		err = e
	} else if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e
	} else if e, ok := errors.AsType[*net.DNSError](err); ok {
		err = e
	} else if errors.Is(err, errPooler) {
		err = errPooler
	} else if errors.Is(err, pgconn.ErrStandbyConnection) {
		err = errStandby
	}
	at := cfg.Host
	if !strings.HasPrefix(at, "/") {
		at = net.JoinHostPort(at, strconv.Itoa(int(cfg.Port)))
	}
	return fmt.Errorf("connect to PostgreSQL at %s (database %q, user %q): %w", at, cfg.Database, cfg.User, err)
}

// NoRows reports whether a query for one row found none.
func NoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// IsUniqueViolation reports whether err violates the named unique constraint or index; an
// empty name stands for any.
func IsUniqueViolation(err error, constraint string) bool {
	return isViolation(err, "23505", constraint)
}

// IsForeignKeyViolation reports whether err violates the named foreign key; an empty name
// stands for any.
func IsForeignKeyViolation(err error, constraint string) bool {
	return isViolation(err, "23503", constraint)
}

// HasCode reports whether err has that SQLSTATE, such as one that a function of ours raises.
func HasCode(err error, code string) bool { return isViolation(err, code, "") }

func isViolation(err error, code, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code && (constraint == "" || e.ConstraintName == constraint)
}

// classify adds what was being done, and the kind Unavailable if the database may recover.
// ctx is the caller's: if it has ended, the error keeps the kind Cancelled or Deadline.
func classify(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil {
		if !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	if isUnavailable(err) || isNetwork(err) {
		return unavailable(fmt.Errorf("%s: %w", doing, err))
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// classifyIn classifies an error of fn. fn may have called something other than the
// database, so a network error counts only if the transaction's connection is closed.
func classifyIn(ctx context.Context, tx pgx.Tx, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || ctx.Err() != nil {
		return err
	}
	if isUnavailable(err) || isNetwork(err) && tx.Conn().IsClosed() {
		return unavailable(err)
	}
	return err
}

func unavailable(err error) error {
	return fault.Wrap(err, fault.Unavailable, "the database is not available at the moment; try again")
}

// isUnavailable reports whether the same transaction may succeed later.
func isUnavailable(err error) bool {
	if errors.Is(err, errBusy) || errors.Is(err, puddle.ErrClosedPool) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch e.Code {
	case "57014", // statement timeout
		"57P01", "57P02", "57P03", "57P05", // shut down, crashed, starting up, idle too long
		"25P03",          // idle in transaction too long
		"55P03",          // lock timeout
		"40001", "40P01", // serialization failure, deadlock
		"25006", // read-only: the server is a former primary
		"58030": // I/O error
		return true
	}
	return strings.HasPrefix(e.Code, "08") || // connection
		strings.HasPrefix(e.Code, "53") // disk full, out of memory, too many connections
}

// isNetwork reports whether err is a lost connection or a timeout.
func isNetwork(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err)
}
