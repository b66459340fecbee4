# The images that deploy/Dockerfile and docker-compose.yml start from, made of Debian's
# packages, for machines that reach no image registry: see bases.sh. Each does what the
# project uses of the image whose name it gets.
ARG DEBIAN=signalbox-e2e/debian:forky

# node:24-slim
FROM $DEBIAN AS node
RUN apt-get update && apt-get install -y --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt

# golang:1.26
FROM $DEBIAN AS golang
RUN apt-get update && apt-get install -y --no-install-recommends golang-1.26-go && rm -rf /var/lib/apt/lists/*
ENV GOPATH=/go GOTOOLCHAIN=local PATH=/go/bin:/usr/lib/go-1.26/bin:/usr/sbin:/usr/bin:/sbin:/bin

# gcr.io/distroless/static-debian12:nonroot
FROM $DEBIAN AS files
RUN apt-get update && apt-get install -y --no-install-recommends tzdata && \
    mkdir -p /static/etc/ssl/certs /static/usr/share /static/home/nonroot /static/tmp && \
    cp /etc/ssl/certs/ca-certificates.crt /static/etc/ssl/certs/ && cp -r /usr/share/zoneinfo /static/usr/share/ && \
    echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >/static/etc/passwd && echo 'nonroot:x:65532:' >/static/etc/group && \
    chown 65532:65532 /static/home/nonroot && chmod 1777 /static/tmp
FROM scratch AS static
COPY --from=files /static /
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PATH=/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /home/nonroot
USER 65532:65532

# postgres:18
FROM $DEBIAN AS postgres
RUN apt-get update && \
    apt-get install -y --no-install-recommends postgresql-common && echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf && \
    apt-get install -y --no-install-recommends postgresql-18 && rm -rf /var/lib/apt/lists/* && \
    install -d -m 1777 -o postgres -g postgres /var/lib/postgresql /var/run/postgresql
COPY --chmod=755 <<'EOF' /usr/local/bin/docker-entrypoint.sh
#!/bin/sh
set -eu
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
	mkdir -p "$PGDATA"
	printf %s "$POSTGRES_PASSWORD" >/tmp/password
	initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256
	rm /tmp/password
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	pg_ctl -D "$PGDATA" -o '-c listen_addresses=' -w start
	createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
	pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"
EOF
ENV PATH=/usr/lib/postgresql/18/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/18/docker LANG=C.UTF-8
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]

# nats:2.15-alpine
FROM golang AS nats-build
ARG NATS_VERSION
RUN CGO_ENABLED=0 GOBIN=/out go install -ldflags '-s -w' github.com/nats-io/nats-server/v2@$NATS_VERSION
FROM $DEBIAN AS nats
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
COPY --from=nats-build /out/nats-server /usr/local/bin/
ENTRYPOINT ["nats-server"]

# haproxy:3.2-alpine
FROM $DEBIAN AS haproxy
RUN apt-get update && apt-get install -y --no-install-recommends haproxy wget && rm -rf /var/lib/apt/lists/*
USER haproxy
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]

# prom/prometheus:v3.5.0
FROM $DEBIAN AS prometheus
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* && \
    install -d -o nobody -g nogroup /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
