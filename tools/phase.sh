#!/bin/sh
# phase.sh TITLE COMMAND...: runs a command under its title and notes in $PHASES how
# it went and how long it took. It does not fail, so that what comes after it runs
# too; phase.sh --summary prints the notes and fails when a phase failed. A command
# that leaves something out calls phase.sh --left-out WHAT, which is noted too and is
# no failure.
set -u

if [ "$1" = --left-out ]; then
	echo "Left out: $2"
	if [ -n "${PHASES:-}" ]; then
		printf 'left out         %s\n' "$2" >>"$PHASES"
	fi
	exit 0
fi
: "${PHASES:?names the file of notes}"

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
