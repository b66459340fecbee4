#!/bin/sh
# Makes in a namespace the Secrets that deploy/helm/signalbox/examples/cert-manager.yaml makes where
# there is cert-manager, with one for PostgreSQL, too. The Secret impostor-tls is of an authority that
# has signed none of them.
#
#   certificates.sh NAMESPACE
set -eu
namespace=${1:?the namespace}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
authority() {
	key "$1.key"
	openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 30 -out "$1.crt" \
		-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature
}
secret() { # NAME AUTHORITY HOST...
	name=$1 by=$2
	shift 2
	key tls.key
	openssl req -new -key tls.key -subj "/CN=$name" -out tls.csr
	{ echo extendedKeyUsage=serverAuth,clientAuth; echo "subjectAltName=$(printf 'DNS:%s,' "$@" | sed 's/,$//')"; } >ext
	openssl x509 -req -in tls.csr -CA "$by.crt" -CAkey "$by.key" -CAcreateserial -days 30 -extfile ext -out tls.crt 2>errors || { cat errors >&2; exit 1; }
	kubectl -n "$namespace" create secret generic "$name" --from-file=tls.crt --from-file=tls.key --from-file=ca.crt="$by.crt"
}

authority services
authority impostor
for s in gateway agent-runner tool-executor document-sync credential-broker migrate; do secret "signalbox-$s-tls" services $s; done
secret nats-tls services nats '*.nats-servers'
secret postgres-tls services postgres-a postgres-b
secret impostor-tls impostor nats postgres-a postgres-b
