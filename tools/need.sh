#!/bin/sh
# need.sh go|node|git...: reports tools that are missing or too old, and where to get them.
set -u
missing=0

say() {
	echo "$1" >&2
	missing=1
}

# at_least MAJOR MINOR FOUND: succeeds if FOUND (like 1.26.8) is new enough.
at_least() {
	major=${3%%.*}
	minor=${3#*.}
	minor=${minor%%[!0-9]*}
	[ "$major" -gt "$1" ] || { [ "$major" -eq "$1" ] && [ "${minor:-0}" -ge "$2" ]; }
}

for tool in "$@"; do
	case $tool in
	go)
		if ! command -v go >/dev/null; then
			say "Go is missing: install 1.26 or newer from https://go.dev/dl and put its bin folder on the PATH."
		elif ! version=$(go env GOVERSION 2>&1) || ! at_least 1 26 "${version#go}" 2>/dev/null; then
			say "Go 1.26 or newer is needed: $(command -v go) is $(GOTOOLCHAIN=local GOWORK=off go version 2>&1 | sed 's/^go version //'). Get it from https://go.dev/dl."
		fi
		;;
	node)
		if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
			say "Node.js with npm is missing: install version 20 or newer from https://nodejs.org or your system's packages."
		else
			version=$(node --version)
			at_least 20 0 "${version#v}" || say "Node.js 20 or newer is needed: $(command -v node) is $version. Get it from https://nodejs.org."
		fi
		;;
	git)
		command -v git >/dev/null || say "git is missing: install it from your system's packages."
		;;
	esac
done
exit $missing
