package main

import (
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/fault"
)

// whyNotOpen says why the database cannot be used, to the operator, who names it and can
// put it right; empty where err is of something else. What servers and dialers say of a
// database holds no password.
func whyNotOpen(err error) string {
	refused, answered := errors.AsType[*pgconn.PgError](err)
	connect, opening := errors.AsType[*pgconn.ConnectError](err)
	opening = opening && fault.KindOf(err) == fault.Unavailable // else it says so itself
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

// unprepared tells by a SQLSTATE whether what migrate makes is not there: tables, their
// schema or, while the connection is opened, the service's role.
func unprepared(code string, opening bool) bool {
	return code == "42P01" || code == "3F000" || opening && code == "22023"
}
