#!/bin/bash
# Builds what node.sh runs, where it is missing: Kubernetes, etcd, CoreDNS, NATS and Helm from Go
# modules; containerd, runc, the CNI plugins and, where it is not installed, iptables from Debian's
# packages, which are unpacked and not installed. PostgreSQL is the machine's.
#
#   build.sh             the node
#   build.sh scaling     metrics-server and KEDA, with their container images
#   build.sh images BIN  container images of the programs in a folder, with the tag TAG (dev)
#
# KUBE_CACHE is where everything is kept (~/.cache/signalbox/kube). KUBE_P is how many compilers
# run at once.
set -euo pipefail
from=$PWD
cd "$(dirname "$(readlink -f "$0")")"
C=${KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/signalbox/kube}
V=1.36.3 # of Kubernetes. The node runs on cgroup v1, too, with failCgroupV1: false.
HELM=v3.22.0
NATS=v2.15.2
export GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -p=${KUBE_P:-2}"
mkdir -p "$C/bin/cni" "$C/debs" "$C/images"
bin=$C/bin
there() { for f; do [ -x "$bin/$f" ] || return 1; done; }
say() { echo "building $*"; }

node() {
	there kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy && return
	say "Kubernetes $V. It takes ten minutes on two idle processors, and much longer on busy ones."
	local p=k8s.io/kubernetes/cmd v=k8s.io/component-base/version
	go build -C node -ldflags "-s -w -X $v.gitVersion=v$V -X $v.gitMajor=${V%%.*} -X $v.gitMinor=$(echo $V | cut -d. -f2)" \
		-o "$bin/" $p/kube-apiserver $p/kube-controller-manager $p/kube-scheduler $p/kubelet $p/kube-proxy
}

addons() {
	there etcd || { say etcd; go build -C addons -ldflags '-s -w' -o "$bin/etcd" go.etcd.io/etcd/server/v3; }
	there coredns || { say CoreDNS; go build -C addons -ldflags '-s -w' -o "$bin/coredns" ./coredns; }
	there nats-server || { say "NATS $NATS"; GOBIN=$bin go install -ldflags '-s -w' "github.com/nats-io/nats-server/v2@$NATS"; }
	there helm || command -v helm >/dev/null || { say "Helm $HELM"; GOBIN=$bin go install -ldflags '-s -w' "helm.sh/helm/v3/cmd/helm@$HELM"; }
	for p in mkimage pause netpol; do go build -C images -ldflags '-s -w' -o "$bin/$p" "./$p"; done
}

# KEDA has clients of every cloud in it: that takes as long as Kubernetes.
scaling() {
	local keda=github.com/kedacore/keda/v2
	there metrics-server || { say metrics-server; go build -C addons -ldflags '-s -w' -o "$bin/metrics-server" sigs.k8s.io/metrics-server/cmd/metrics-server; }
	there keda-operator keda-adapter || {
		say "KEDA. It takes as long as Kubernetes."
		go build -C scaling -ldflags '-s -w' -o "$bin/keda-adapter" $keda/cmd/adapter
		go build -C scaling -ldflags '-s -w' -o "$bin/keda-operator" $keda/cmd/operator
	}
	for p in metrics-server keda-operator keda-adapter; do
		image localhost/$p:1 $p -user 65532:65532 -entrypoint /$p -dir /tmp:1777:0 "$bin/$p:/$p"
	done
	kubectl kustomize "$(go list -C scaling -m -f '{{.Dir}}' $keda)/config/crd" >"$C/keda-crds.yaml"
}

# unpack PACKAGE... puts Debian's packages into $C/root.
unpack() { (
	cd "$C/debs" && apt-get download -q "$@" 2>/dev/null
	for p; do dpkg-deb -x "$(ls "$p"_*.deb | tail -n 1)" "$C/root"; done
) || { echo "apt-get cannot download $*: the node needs them" >&2; exit 1; }; }

debian() {
	if ! there containerd ctr runc cni/bridge; then
		unpack containerd runc containernetworking-plugins
		install -m 755 "$C"/root/usr/sbin/runc "$C"/root/usr/bin/{containerd,containerd-shim-runc-v2,ctr} "$bin/"
		install -m 755 "$C"/root/usr/lib/cni/{bridge,host-local,loopback,portmap} "$bin/cni/"
	fi
	if ! command -v iptables >/dev/null && ! there iptables; then
		unpack iptables libip4tc2 libip6tc2 libxtables12 libnftnl11 libmnl0 libnfnetlink0 libnetfilter-conntrack3
		mkdir -p "$C/lib"
		cp -a "$C"/root/usr/lib/x86_64-linux-gnu/{xtables,lib*.so*} "$C/lib/"
		install -m 755 "$C/root/usr/sbin/xtables-nft-multi" "$bin/"
		for n in iptables ip6tables; do for s in '' -save -restore; do ln -sf xtables-nft-multi "$bin/$n$s"; done; done
	fi
	if ldd "$bin/runc" | grep 'not found'; then echo "runc needs these libraries: install libseccomp2" >&2; exit 1; fi
}

image() { # image NAME:TAG FILE ARGUMENTS OF mkimage
	local tag=$1 file=$2
	shift 2
	"$bin/mkimage" -t "$tag" -o "$C/images/$file.tar" "$@"
}

infrastructure() {
	local pg
	pg=$(ls -d /usr/lib/postgresql/*/bin/pg_basebackup 2>/dev/null | sort -V | tail -n 1)
	pg=${pg%/bin/pg_basebackup}
	[ -n "$pg" ] || { echo "there is no PostgreSQL under /usr/lib/postgresql: apt-get install postgresql" >&2; exit 1; }
	image localhost/pause:1 pause -user 65535:65535 -entrypoint /pause "$bin/pause:/pause"
	image localhost/coredns:1 coredns -entrypoint /coredns "$bin/coredns:/coredns"
	image localhost/nats:1 nats -user 65532:65532 -entrypoint /nats-server -dir /data:0755:65532 -dir /tmp:1777:0 "$bin/nats-server:/nats-server"
	local deps=()
	for p in postgres initdb pg_basebackup pg_ctl psql; do deps+=(-deps "$pg/bin/$p"); done
	for p in /bin/dash /bin/sleep /bin/rm /bin/cat /bin/chmod; do deps+=(-deps "$p"); done
	image localhost/postgres:1 postgres -user 65532:65532 -env "PATH=$pg/bin:/bin" -env LC_ALL=C -entrypoint /postgres.sh \
		-dir /tmp:1777:0 -dir /data:0755:65532 "${deps[@]}" \
		"$pg/bin:$pg/bin" "$pg/lib:$pg/lib" "/usr/share/postgresql/${pg##*/}:/usr/share/postgresql/${pg##*/}" \
		/bin/dash:/bin/sh /bin/sleep:/bin/sleep /bin/rm:/bin/rm /bin/cat:/bin/cat /bin/chmod:/bin/chmod \
		images/postgres.sh:/postgres.sh images/passwd:/etc/passwd
}

# The programs as deploy/Dockerfile has them, without its base.
programs() {
	for s in gateway agent-runner tool-executor document-sync credential-broker simulator signalbox; do
		local program=$1/$s env=()
		# With tools that call a service of the tests'.
		[ $s != tool-executor ] || { program=$1/tool-executor-farends; env=(-env FAR_END_URL=http://10.89.0.1:9099); }
		image "signalbox/$s:${TAG:-dev}" "$s-${TAG:-dev}" "${env[@]}" -user 65532:65532 -entrypoint "/$s" -dir /data:0755:65532 -dir /tmp:1777:0 \
			"$program:/$s" images/passwd:/etc/passwd
	done
}

case ${1:-all} in
all) debian; node; addons; infrastructure ;;
images) programs "$(cd "$from" && readlink -f "${2:?the folder of the programs}")" ;;
node | addons | scaling | debian | infrastructure) "$1" ;;
*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
