#!/bin/sh
# make-env.sh [FILE]: writes FILE (default .env, next to docker-compose.yml) from
# deploy/.env.example with a fresh password or key in each empty place. It never
# changes a file that exists: the database was made with its passwords.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
file=${1:-$here/../.env}
umask 077

if [ -e "$file" ]; then
	echo "$file exists and stays as it is. To begin anew, remove it and the volumes (docker compose down --volumes)." >&2
	exit 1
fi
command -v openssl >/dev/null || { echo "openssl is missing: install it, or fill in a copy of deploy/.env.example by hand." >&2; exit 1; }

base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

# The last 32 bytes of an Ed25519 key in DER are the key itself (RFC 8410).
pem=$(mktemp)
new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$pem" "$new"' EXIT
while IFS= read -r line; do
	case $line in
	'#'* | '') ;;
	*_SERVICE_KEY=)
		openssl genpkey -algorithm ed25519 -out "$pem"
		line=$line$(openssl pkey -in "$pem" -outform DER | tail -c 32 | base64url)
		;;
	*_PUBLIC_KEY=) # of the pair that was made for the line above
		line=$line$(openssl pkey -in "$pem" -pubout -outform DER | tail -c 32 | base64url)
		;;
	*_PASSWORD= | *_SECRET=)
		line=${line}p$(openssl rand -hex 20)
		;;
	*=)
		echo "$0 does not know how to fill in $line" >&2
		exit 1
		;;
	esac
	printf '%s\n' "$line"
done <"$here/.env.example" >"$new"
mv "$new" "$file"
trap 'rm -f "$pem"' EXIT
echo "Wrote $file. Next: docker compose up --build --wait"
