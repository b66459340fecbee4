#!/bin/sh
# A PostgreSQL server, or with PEER one of two, each of which is the other one's synchronous
# standby. At its start such a server asks PEER: if that is a primary, it becomes its standby, with
# a new copy. If it is not, and there are no data, it waits for the peer, unless it is FIRST.
# With a certificate in /tls it refuses connections without TLS.
set -eu
export PGPASSWORD="$POSTGRES_PASSWORD" PGDATA=/data/pg PGCONNECT_TIMEOUT=2
user=${POSTGRES_USER:-postgres}
host=host
[ ! -e /tls/tls.crt ] || host=hostssl
primary() { [ -n "${PEER:-}" ] && [ "$(psql -XAtq -h "$PEER" -U "$user" -c 'SELECT NOT pg_is_in_recovery()' postgres 2>/dev/null)" = t ]; }
create() {
	echo "$PGPASSWORD" >/tmp/password
	initdb -D "$PGDATA" -U "$user" --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8 --locale=C || exit
	echo "CREATE DATABASE \"${POSTGRES_DB:-signalbox}\"" | postgres --single -D "$PGDATA" postgres || exit
	printf "$host all all all scram-sha-256\n$host replication all all scram-sha-256\n" >>"$PGDATA/pg_hba.conf"
	[ -z "${PEER:-}" ] || echo "synchronous_standby_names = 'standby'" >>"$PGDATA/postgresql.auto.conf"
}
until if primary; then
	rm -rf "$PGDATA"
	pg_basebackup -D "$PGDATA" -X stream -c fast -R \
		-d "host=$PEER user=$user password=$PGPASSWORD application_name=standby keepalives_idle=2 keepalives_interval=1 keepalives_count=2"
elif [ -s "$PGDATA/PG_VERSION" ]; then
	true
elif [ -n "${FIRST:-}" ] || [ -z "${PEER:-}" ]; then
	create
else
	false
fi; do sleep 1; done
chmod 700 "$PGDATA"
[ $host = host ] || set -- -c ssl=on -c ssl_cert_file=/tls/tls.crt -c ssl_key_file=/tls/tls.key "$@"
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp -c max_connections=300 -c wal_keep_size=256MB "$@"
