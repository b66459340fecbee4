#!/bin/bash
# engine.sh: a Docker engine for the tests, where none is running.
#
#   engine.sh up                start it, the first time after installing Debian's packages
#                               of it into a folder
#   engine.sh exec CMD ARGS...  run a command that reaches the engine (docker) and the
#                               ports that containers publish
#   engine.sh down              end it, with everything that runs in it
#   engine.sh clean             remove its files too
#
# Where `docker info` already answers, up and down leave that engine alone, and exec only
# runs the command.
#
# The engine runs in namespaces of its own (network, mounts, processes, cgroups, IPC, UTS),
# in a Debian of its own: this machine's network, packet filter, /run, /var and Docker
# settings stay as they are. It reaches the outside through slirp4netns, as an ordinary
# process. When its first process ends, so do all containers, mounts and the network.
#
#   state                      what "up" and "down" find
#   nothing                    up installs and starts
#   files, no process          up starts (also after a crash: it removes what was left)
#   files and process          up says so; down ends the process and its cgroups
#
# Needs Linux, root, and util-linux; for the first start a way to Debian's package server.
# Files are in SIGNALBOX_ENGINE_DIR (default: ~/.cache/signalbox/engine, about 6 GB).
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
checkout=$(cd "$here/../../.." && pwd)
dir=${SIGNALBOX_ENGINE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/signalbox/engine}
root=$dir/root # a Debian with the engine
run=$dir/run   # init.pid, docker.sock, logs
cgroup=signalbox-engine
# The release whose packages are the engine's: 28, with Compose 2.40.
suite=forky
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

fail() {
	echo "engine.sh: $*" >&2
	exit 1
}

# pid prints the process id of the engine's first process, if it is running.
pid() {
	local p
	p=$(cat "$run/init.pid" 2>/dev/null) && tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q "engine.sh inside" && echo "$p"
}

# elsewhere reports whether this machine has a running engine that is not ours.
elsewhere() { [ -z "${SIGNALBOX_ENGINE_DIR:-}" ] && docker info >/dev/null 2>&1; }

# bootstrap SUITE FOLDER: installs a small Debian into a folder.
bootstrap() {
	local tools=$dir/debootstrap
	if [ ! -d "$tools" ]; then
		mkdir -p "$tools.new"
		(cd "$tools.new" && apt-get download -q debootstrap >&2 && dpkg-deb -x debootstrap_*.deb .) ||
			fail "apt-get cannot download debootstrap: a Debian or Ubuntu with a package server is needed, or a Docker engine of yours."
		mv "$tools.new" "$tools"
	fi
	local scripts=$tools/usr/share/debootstrap/scripts
	[ -e "$scripts/$1" ] || ln -s sid "$scripts/$1" # newer than this debootstrap
	rm -rf "$2" "$2.new"
	mkdir -p "$dir/debs"
	DEBOOTSTRAP_DIR=$tools/usr/share/debootstrap "$tools/usr/sbin/debootstrap" --variant=minbase --include=ca-certificates \
		--cache-dir="$dir/debs" "$1" "$2.new" "$mirror" >"$dir/debootstrap-$1.log" 2>&1 || fail "debootstrap: see $dir/debootstrap-$1.log"
	# What this machine trusts, for servers behind a proxy with a certificate of its own.
	cat /etc/ssl/certs/ca-certificates.crt >"$2.new/etc/ssl/certs/ca-certificates.crt"
	# The package server may be a snapshot; its signature counts all the same.
	echo 'Acquire::Check-Valid-Until "false";' >"$2.new/etc/apt/apt.conf.d/snapshot"
	# Packages start no services.
	printf '#!/bin/sh\nexit 101\n' >"$2.new/usr/sbin/policy-rc.d"
	chmod 755 "$2.new/usr/sbin/policy-rc.d"
	rm -rf "$2.new"/var/cache/apt/archives/*.deb "$2.new"/var/lib/apt/lists/*
	mv "$2.new" "$2"
}

# archive SUITE makes an archive of a Debian that `docker import` takes, and prints its name.
archive() {
	[ -e "$dir/$1.tar" ] || {
		bootstrap "$1" "$dir/$1"
		tar -C "$dir/$1" --one-file-system -cf "$dir/$1.tar.new" .
		mv "$dir/$1.tar.new" "$dir/$1.tar"
		rm -rf "${dir:?}/$1"
	}
	echo "$dir/$1.tar"
}

install_engine() {
	[ -e "$root/usr/sbin/dockerd" ] && return
	echo "Installing the engine into $dir. The first time takes some minutes." >&2
	archive $suite >/dev/null
	rm -rf "$root.new"
	mkdir -p "$root.new"
	tar -C "$root.new" -xf "$dir/$suite.tar"
	cp /etc/resolv.conf "$root.new/etc/resolv.conf"
	# In a mount namespace, so that nothing stays mounted.
	unshare --mount -- sh -euc '
		mount -t proc proc "$1/proc"
		export DEBIAN_FRONTEND=noninteractive
		chroot "$1" apt-get update -q
		chroot "$1" apt-get install -q -y --no-install-recommends docker.io docker-cli docker-compose docker-buildx iptables iproute2 slirp4netns
		chroot "$1" apt-get clean' _ "$root.new" >"$dir/install.log" 2>&1 || fail "installing the engine: see $dir/install.log"
	mv "$root.new" "$root"
}

# inside is the first process of the namespaces.
inside() {
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t sysfs sysfs "$root/sys"
	if [ -n "$CGROUPS" ]; then
		mount -t tmpfs -o mode=755 cgroup "$root/sys/fs/cgroup"
		local c
		for c in $CGROUPS; do
			mkdir "$root/sys/fs/cgroup/$c"
			mount -t cgroup -o "$([ "$c" = systemd ] && echo none,name=systemd || echo "$c")" cgroup "$root/sys/fs/cgroup/$c"
		done
	else
		mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	fi
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mkdir -p "$root/var/lib/docker" "$dir/docker" "$root$checkout" "$root/run/engine"
	mount --bind "$dir/docker" "$root/var/lib/docker"
	mount --bind "$run" "$root/run/engine"
	mount --bind "$checkout" "$root$checkout" # Compose mounts files of it, by their paths
	ip link set lo up
	sysctl -qw net.ipv4.ip_forward=1
	echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf" # slirp4netns'
	touch "$run/born"
	until ip link show tap0 >/dev/null 2>&1; do sleep 0.05; done
	# Not chroot: `docker exec` would find itself at the root of the namespace.
	cd "$root"
	mkdir -p old
	pivot_root . old
	exec /bin/bash -c '
		umount -l /old
		dockerd --host unix:///run/engine/docker.sock --exec-opt native.cgroupdriver=cgroupfs --log-level warn &
		engine=$!
		trap "kill -TERM $engine" TERM
		while kill -0 $engine 2>/dev/null; do wait; done # it reaps what others leave
	' "engine.sh inside"
}

up() {
	if elsewhere; then
		echo "Using the engine that is running." >&2
		return
	fi
	if [ -n "$(pid)" ]; then
		echo "The engine is running." >&2
		return
	fi
	[ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ] || fail "no Docker engine is running. Start one, or run this as root on Linux, where it starts one of its own."
	down
	install_engine
	mkdir -p "$run/bin"
	printf '#!/bin/sh\nexec "%s" docker "$@"\n' "$here/engine.sh" >"$run/bin/docker"
	chmod 755 "$run/bin/docker"
	CGROUPS=
	local d c
	if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
		mkdir -p "/sys/fs/cgroup/$cgroup"
	else
		for d in /sys/fs/cgroup/*/; do
			c=$(basename "$d")
			grep -qE " ${d%/} cgroup " /proc/mounts || continue
			mkdir -p "$d$cgroup"
			if [ "$c" = cpuset ]; then
				cat "$d/cpuset.cpus" >"$d$cgroup/cpuset.cpus"
				cat "$d/cpuset.mems" >"$d$cgroup/cpuset.mems"
			fi
			CGROUPS="$CGROUPS $c"
		done
	fi
	export CGROUPS
	( # joins the cgroups, then leaves for the namespaces
		for c in ${CGROUPS:-.}; do echo $BASHPID >"/sys/fs/cgroup/$c/$cgroup/cgroup.procs"; done
		exec setsid unshare --net --mount --pid --ipc --uts --cgroup --fork --kill-child --mount-proc -- bash "$here/engine.sh" inside
	) </dev/null >"$run/engine.log" 2>&1 9>&- &
	local parent=$!
	for _ in $(seq 200); do [ -e "$run/born" ] && break; sleep 0.05; done
	[ -e "$run/born" ] || fail "the engine did not start: see $run/engine.log"
	pgrep -P $parent | head -1 >"$run/init.pid"
	(
		for c in ${CGROUPS:-.}; do echo $BASHPID >"/sys/fs/cgroup/$c/$cgroup/cgroup.procs"; done
		exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" \
			"$root/usr/bin/slirp4netns" --configure --mtu=65520 --disable-host-loopback "$(cat "$run/init.pid")" tap0
	) </dev/null >"$run/slirp4netns.log" 2>&1 9>&- &
	echo $! >"$run/slirp4netns.pid"
	for _ in $(seq 300); do
		docker_ info >/dev/null 2>&1 && return
		[ -d "/proc/$parent" ] || break
		sleep 0.1
	done
	fail "the engine does not answer: see $run/engine.log"
}

# docker_ is the engine's own client.
docker_() {
	nsenter --target "$(pid)" --all -- env -C "$PWD" PATH=/usr/sbin:/usr/bin HOME=/root \
		DOCKER_HOST=unix:///run/engine/docker.sock docker "$@"
}

down() {
	local p
	if p=$(pid); then
		kill -TERM "$p" # the engine ends containers, and has 15 s for it
		for _ in $(seq 200); do [ -d "/proc/$p" ] || break; sleep 0.1; done
		[ ! -d "/proc/$p" ] || kill -KILL "$p"
	fi
	p=$(cat "$run/slirp4netns.pid" 2>/dev/null) && grep -q slirp4netns "/proc/$p/cmdline" 2>/dev/null && kill "$p"
	local d
	for d in /sys/fs/cgroup/*/$cgroup /sys/fs/cgroup/$cgroup; do
		[ -d "$d" ] || continue
		for _ in $(seq 50); do
			find "$d" -depth -type d -exec rmdir {} + 2>/dev/null || true
			[ -d "$d" ] || break
			sleep 0.1
		done
		[ ! -d "$d" ] || fail "left: $d"
	done
	rm -rf "$run"
}

exec_() {
	if elsewhere; then exec "$@"; fi
	local p
	p=$(pid) || fail "no engine is running: engine.sh up"
	export PATH="$run/bin:$PATH" SIGNALBOX_ENGINE_DIR=$dir
	exec nsenter --target "$p" --net -- "$@"
}

case ${1:-} in
up | down) "$1" ;;
inside) inside ;;
docker) shift; docker_ "$@" ;;
exec) shift; exec_ "$@" ;;
archive) archive "$2" ;;
clean) elsewhere || { down; rm -rf "$dir"; } ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
	[ "${1:-}" = --help ] || exit 2
	;;
esac
