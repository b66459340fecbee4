#!/bin/sh
# phase.sh TITLE COMMAND...: runs a command and records its result and duration in $PHASES. It
# does not fail, so that later phases run, too. phase.sh --summary prints the records and fails
# if a phase failed. A command that skips something calls phase.sh --left-out WHAT, which is
# recorded and is not a failure.
set -u

if [ "$1" = --left-out ]; then
	echo "Left out: $2"
	if [ -n "${PHASES:-}" ]; then
		printf 'left out         %s\n' "$2" >>"$PHASES"
	fi
	exit 0
fi
: "${PHASES:?names the file of records}"

if [ "$1" = --summary ]; then
	echo
	cat "$PHASES"
	if grep -q '^FAILED' "$PHASES"; then
		exit 1
	fi
	exit 0
fi

title=$1
shift
printf '\n── %s\n' "$title"
begin=$(date +%s)
result=ok
"$@" || result=FAILED
printf '%-7s%5d s  %s\n' "$result" $(($(date +%s) - begin)) "$title" >>"$PHASES"
