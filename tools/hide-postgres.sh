#!/bin/sh
# hide-postgres.sh COMMAND...: runs a command that does not see this machine's PostgreSQL, only
# the one that npm installs. In a mount namespace of the command's own, it covers each place
# where pkg/pgd would find another one. It needs root on Linux.
set -eu
# shellcheck disable=SC2016 # the inner shell expands it
exec unshare --mount sh -c '
set -eu
for dir in /usr/lib/postgresql /usr/pgsql-* /home/linuxbrew/.linuxbrew/opt/postgresql@*; do
	if [ -d "$dir" ]; then
		mount -t tmpfs -o size=64k,mode=755 hidden "$dir"
	fi
done
for name in postgres pg_ctl; do
	while program=$(command -v "$name"); do
		mount --bind /dev/null "$program"
	done
done
exec "$@"' sh "$@"
