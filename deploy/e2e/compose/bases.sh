#!/bin/bash
# bases.sh: gives the engine of engine.sh the images that deploy/Dockerfile and
# docker-compose.yml start from, under their names, made from Debian's packages
# (bases.Dockerfile). It builds what is missing. An engine of yours pulls them from their
# registries instead.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
engine=$here/engine.sh
docker() { "$engine" docker "$@"; }

# debian SUITE NAME
debian() {
	docker image inspect "$2" >/dev/null 2>&1 || {
		echo "Importing $2" >&2
		docker import - "$2" <"$("$engine" archive "$1")" >/dev/null
	}
}

# base TARGET NAME
base() {
	docker image inspect "$2" >/dev/null 2>&1 && return
	echo "Making $2" >&2
	docker build --progress plain --file "$here/bases.Dockerfile" --target "$1" --build-arg NATS_VERSION="$nats" --tag "$2" "$here" >&2
}

nats=$(sed -n 's/^.*nats-io\/nats-server\/v2 \(v[0-9.]*\).*$/\1/p' "$here/../../../pkg/go.mod")
debian forky signalbox-e2e/debian:forky
base node node:24-slim
base golang golang:1.26
base static gcr.io/distroless/static-debian12:nonroot
base postgres postgres:18
base nats nats:2.15-alpine
base haproxy haproxy:3.2-alpine
base prometheus prom/prometheus:v3.5.0
debian bookworm debian:12-slim
