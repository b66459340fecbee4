package main

import (
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/process"
)

// forPeople returns an error without the internal details of a fault. An Invalid fault is
// wrong usage.
func forPeople(err error) error {
	if why := databaseProblem(err); why != "" {
		return errors.New(why)
	}
	f, ok := errors.AsType[*fault.Error](err)
	switch {
	case !ok || f.Kind == fault.Internal:
		return err
	case f.Kind == fault.Invalid:
		return process.Usage("%s", f.Message)
	}
	return errors.New(f.Message)
}

// inContext is forPeople that keeps what was being done.
func inContext(err error) error {
	if why := databaseProblem(err); why != "" {
		return errors.New(why)
	}
	text := err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind != fault.Internal {
		text = strings.Replace(text, f.Error(), f.Message, 1)
	}
	return errors.New(text)
}

// databaseProblem says why the database cannot be used, to the operator, who named it; it
// is empty if the error is about something else. What servers and dialers report of a
// database contains no password.
func databaseProblem(err error) string {
	refused, answered := errors.AsType[*pgconn.PgError](err)
	connect, opening := errors.AsType[*pgconn.ConnectError](err)
	opening = opening && fault.KindOf(err) == fault.Unavailable // other faults explain themselves
	switch {
	case answered && unprepared(refused.Code, opening):
		return "the database is not prepared: run signalbox migrate"
	case !opening:
		return ""
	case answered:
		return "the database cannot be opened: " + printable(refused.Message)
	}
	why := connect.Unwrap()
	if e, ok := errors.AsType[*net.OpError](err); ok {
		why = e
	} else if e, ok := errors.AsType[*net.DNSError](err); ok {
		why = e
	}
	return "the database cannot be opened: " + printable(strings.ReplaceAll(why.Error(), "\n", "; "))
}

// unprepared reports whether a SQLSTATE means that what migrate makes is missing: tables,
// their schema or, while the connection is opened, the service's role.
func unprepared(code string, opening bool) bool {
	return code == "42P01" || code == "3F000" || opening && code == "22023"
}
