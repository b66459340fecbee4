#!/bin/sh
# make-env.sh [--development] [FILE]: writes FILE (default .env, next to
# docker-compose.yml) from deploy/.env.example and fills each empty value with a fresh
# password or key. With --development it also turns on the development issuer, which is
# for trials only: its tokens sign in anybody. It never changes an existing file, since
# the database was created with the passwords in it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
development=
case ${1:-} in
--development)
	development=yes
	shift
	;;
-*)
	echo "usage: $0 [--development] [FILE]" >&2
	exit 2
	;;
esac
file=${1:-$here/../.env}
umask 077

if [ -e "$file" ]; then
	echo "$file exists and is not changed. To start over, remove it and the volumes (docker compose down --volumes)." >&2
	exit 1
fi
command -v openssl >/dev/null || { echo "openssl is missing: install it, or fill in a copy of deploy/.env.example by hand." >&2; exit 1; }

new=$(mktemp "$file.XXXXXX")
keys=$(mktemp -d)
trap 'rm -rf "$keys" "$new"' EXIT

# key private|public SERVICE: the last 32 bytes of an Ed25519 key in DER are the key
# itself (RFC 8410), here in base64url.
key() {
	[ -e "$keys/$2" ] || openssl genpkey -algorithm ed25519 -out "$keys/$2"
	case $1 in public) set -- -pubout "$2" ;; private) set -- '' "$2" ;; esac
	openssl pkey -in "$keys/$2" $1 -outform DER | tail -c 32 | openssl base64 -A | tr '+/' '-_' | tr -d '='
}

# trust SERVICE...: their public keys as TRUSTED_KEYS wants them.
trust() {
	separator=
	for service in "$@"; do
		printf '%s%s=%s' "$separator" "$service" "$(key public "$service")"
		separator=,
	done
}

while IFS= read -r line; do
	case $development$line in
	'yes# GATEWAY_DEV_SECRET=' | 'yes# SIMULATED_SERVICES=true') line="${line#\# }" ;;
	esac
	case $line in
	'#'* | '') ;;
	GATEWAY_SERVICE_KEY=) line=$line$(key private gateway) ;;
	AGENT_RUNNER_SERVICE_KEY=) line=$line$(key private agent-runner) ;;
	TOOL_EXECUTOR_SERVICE_KEY=) line=$line$(key private tool-executor) ;;
	AGENT_RUNNER_TRUSTED_KEYS=) line=$line$(trust gateway) ;;
	TOOL_EXECUTOR_TRUSTED_KEYS=) line=$line$(trust agent-runner gateway) ;;
	DOCUMENT_SYNC_TRUSTED_KEYS=) line=$line$(trust gateway tool-executor) ;;
	BROWSER_TRUSTED_KEYS=) line=$line$(trust tool-executor) ;;
	CREDENTIAL_BROKER_TRUSTED_KEYS=) line=$line$(trust agent-runner gateway tool-executor) ;;
	*_PASSWORD= | *_SECRET=) line=${line}p$(openssl rand -hex 20) ;;
	*=)
		echo "$0 does not know how to fill in $line" >&2
		exit 1
		;;
	esac
	printf '%s\n' "$line"
done <"$here/.env.example" >"$new"
mv "$new" "$file"
trap 'rm -rf "$keys"' EXIT
if [ -n "$development" ]; then
	echo "Wrote $file. Next: docker compose up --build --wait"
else
	echo "Wrote $file. Next: set in it whose tokens are accepted (GATEWAY_JWT_ISSUER and GATEWAY_JWKS_URL or GATEWAY_JWT_SECRET), then docker compose up --build --wait"
fi
