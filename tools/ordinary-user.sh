#!/bin/sh
# ordinary-user.sh: runs the tests of starting up as an unprivileged user, on a copy of the
# files that they need, which that user owns. For root, after `make build-e2e`: Postgres does
# not run as root, so root's own tests start it in another way than most users do.
set -eu
cd "$(dirname "$0")/.."

top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir -p "$top/tmp" "$top/bin" "$top/services/console"
git ls-files -z go.work pkg/pgd services/standalone/cmd/signalbox/testdata services/e2e/testdata |
	tar -c --null -T - | tar -x -C "$top"
cp -a services/console/node_modules "$top/services/console/"
for program in services/*/cmd/* nats-server; do
	cp "bin/${program##*/}" "$top/bin/"
done
for package in pkg/pgd services/standalone/cmd/signalbox services/e2e; do
	go test -c -vet=off -ldflags='-s -w' -o "$top/$package/start.test" "./$package"
done
chown -R 65534:65534 "$top"

# run PACKAGE TESTS: the tests of a package whose names match.
run() {
	(cd "$top/$1" && setpriv --reuid=65534 --regid=65534 --clear-groups \
		env -i PATH="$PATH" HOME="$top" TMPDIR="$top/tmp" SIGNALBOX_E2E_BIN="$top/bin" ./start.test -test.timeout=5m -test.run "$2")
}
# Only those that depend on who starts a server: `make test` has run all.
run pkg/pgd '^Test(Installations|KilledShell|StoppedTooLate|UnusableFolders|Sweep)$'
run services/standalone/cmd/signalbox '^TestAccounts$/^folder$'
run services/e2e '^TestCommandLine$/^life$'
