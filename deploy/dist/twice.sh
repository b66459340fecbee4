#!/bin/sh
# twice.sh VERSION: makes a release in two clones of this repository, in different folders, and
# fails if a file differs.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for clone in first a/second; do
	git clone --quiet . "$work/$clone"
	make -s -C "$work/$clone" dist VERSION="$1"
done
if diff "$work/first/bin/dist/checksums.txt" "$work/a/second/bin/dist/checksums.txt"; then
	echo "Both releases are the same:"
	cat "$work/first/bin/dist/checksums.txt"
else
	echo "The two releases differ: depends a file on the folder or the time?" >&2
	exit 1
fi
