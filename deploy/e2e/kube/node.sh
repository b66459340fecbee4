#!/bin/bash
# A Kubernetes of one node with real pods, on this machine, for tests. build.sh has built it.
#
#   node.sh up                  start it, and wait until CoreDNS is ready
#   node.sh down                end it and remove what it left
#   node.sh kubectl ARGS...     kubectl inside its network
#   node.sh load TAR...         give it images that mkimage or `docker save` wrote
#   node.sh exec CMD ARGS...    run a program of this machine in the node's network: it reaches
#                               pods, services and the API server
#   node.sh enter CMD ARGS...   the same, and in its mounts and processes too (ctr, nsenter)
#
# Everything runs in namespaces of its own (network, mounts, processes, cgroups, IPC, UTS): the
# machine's network, iptables, /run, /var and sysctls stay as they are, and the end of the
# namespace's first process ends every pod, unmounts everything and removes the network. If this
# script dies, `down` does the same. Needs root, kubectl, openssl, curl and bc; no Docker, no systemd, no
# registry. It was run on cgroup v1 only.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
C=${KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/signalbox/kube}
BIN=$C/bin
S=${KUBE_STATE:-$C/state}
NODE_IP=10.89.0.1      # on an interface inside
POD_CIDR=10.244.0.0/24 # the bridge cni0
SVC_CIDR=10.96.0.0/16
DNS_IP=10.96.0.10
NODE=node1
CG=signalbox-kube # the cgroup
export PATH="$BIN:$BIN/cni:/usr/local/sbin:/usr/sbin:/sbin:$PATH"
# Where iptables is not installed: see build.sh.
[ ! -d "$C/lib" ] || export LD_LIBRARY_PATH="$C/lib" XTABLES_LIBDIR="$C/lib/xtables"
init() { cat "$S/init.pid"; }
now() { date +%s.%N; }
# say prints a line with the seconds since the start.
say() { printf '%6.1f s  %s\n' "$(echo "$(now) - $T0" | bc)" "$*" >&2; }

certs() { # a CA, the API server's certificate, and client certificates of the API server itself
	mkdir -p "$S/pki" && cd "$S/pki"
	openssl ecparam -name prime256v1 -genkey -noout -out ca.key
	openssl req -x509 -new -key ca.key -subj /CN=test-ca -days 30 -out ca.crt \
		-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature
	leaf() { # name subject extensions
		openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
		openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
		printf '%s\n' "$3" >"$1.ext"
		openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
	}
	leaf apiserver /CN=kube-apiserver "extendedKeyUsage=serverAuth
subjectAltName=IP:$NODE_IP,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
	# Of APIs that pods add to it, and of the API server as their client.
	leaf added-apis /CN=added-apis "extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:metrics-server.kube-system.svc,DNS:keda-metrics-apiserver.keda.svc,DNS:keda-operator.keda.svc.cluster.local"
	leaf front-proxy /CN=front-proxy extendedKeyUsage=clientAuth
	leaf to-kubelet "/O=system:masters/CN=kube-apiserver-kubelet-client" extendedKeyUsage=clientAuth
	openssl ecparam -name prime256v1 -genkey -noout -out sa.key
	openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
	: >tokens.csv
	token() { # file user groups: a static token and a kubeconfig with it
		local t; t=$(openssl rand -hex 16)
		echo "$t,$2,$2,\"$3\"" >>tokens.csv
		cat >"$S/$1.kubeconfig" <<-Y
			apiVersion: v1
			kind: Config
			clusters: [{name: c, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $S/pki/ca.crt}}]
			users: [{name: u, user: {token: $t}}]
			contexts: [{name: x, context: {cluster: c, user: u}}]
			current-context: x
		Y
	}
	token admin admin system:masters
	token kcm system:kube-controller-manager ''
	token scheduler system:kube-scheduler ''
	token proxy system:kube-proxy ''
	token kubelet system:node:$NODE system:nodes
}

configs() {
	mkdir -p "$S/cni"
	cat >"$S/containerd.toml" <<-Y
		version = 2
		root = '$S/containerd'
		state = '/run/containerd'
		disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.aufs']
		[grpc]
		  address = '/run/containerd/containerd.sock'
		[plugins.'io.containerd.grpc.v1.cri']
		  sandbox_image = 'localhost/pause:1'
		  restrict_oom_score_adj = true # CAP_SYS_RESOURCE may be missing here: else "can't get final child's PID from pipe: EOF"
		  [plugins.'io.containerd.grpc.v1.cri'.cni]
		    bin_dir = '$BIN/cni'
		    conf_dir = '$S/cni'
		  [plugins.'io.containerd.grpc.v1.cri'.containerd]
		    default_runtime_name = 'runc'
		    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
		      runtime_type = 'io.containerd.runc.v2'
		      [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.options]
		        BinaryName = '$BIN/runc'
		        SystemdCgroup = false # there is no systemd: cgroupfs, as for the kubelet
	Y
	cat >"$S/cni/10-bridge.conflist" <<-Y
		{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	Y
	cat >"$S/kubelet.yaml" <<-Y
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		failCgroupV1: false          # the default of 1.35 and later is to refuse cgroup v1
		cgroupDriver: cgroupfs
		cgroupsPerQOS: true          # /kubepods/{burstable,besteffort} inside our own cgroup namespace
		enforceNodeAllocatable: [pods]
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $S/pki/ca.crt}}
		authorization: {mode: Webhook}
		address: $NODE_IP
		clusterDNS: [$DNS_IP]
		clusterDomain: cluster.local
		resolvConf: $S/resolv.conf   # nothing outside is resolved
		failSwapOn: false
		podLogsDir: $S/pod-logs
		volumePluginDir: $S/volume-plugins
		evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
		imageGCHighThresholdPercent: 100 # images cannot be pulled again
		imageGCLowThresholdPercent: 99
		localStorageCapacityIsolation: false
		maxPods: 60
		oomScoreAdj: 0 # -999 needs CAP_SYS_RESOURCE
		registerWithTaints: []
		syncFrequency: 10s
		volumeStatsAggPeriod: 0s
		shutdownGracePeriod: 0s
	Y
	cat >"$S/proxy.yaml" <<-Y
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: ${KUBE_PROXY_MODE:-iptables}
		clusterCIDR: $POD_CIDR
		hostnameOverride: $NODE
		clientConnection: {kubeconfig: $S/proxy.kubeconfig}
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s} # the machine's own limits stay
		bindAddress: $NODE_IP
		healthzBindAddress: $NODE_IP:10256
		metricsBindAddress: $NODE_IP:10249
		iptables: {syncPeriod: 30s, minSyncPeriod: 100ms}
	Y
	echo 'search .' >"$S/resolv.conf"
}

# --- the first process of the namespaces ---------------------------------------------------
inside() {
	mount --make-rprivate / && mount --make-rshared / # the kubelet passes mounts on to pods: shared, but not with the machine
	mount -t sysfs sysfs /sys                         # of the new network
	if [ -n "${CGROUP_V1:-}" ]; then
		mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
		for c in $CGROUP_V1; do
			o=$c; [ "$c" != systemd ] || o=none,name=systemd # the kubelet wants that one too where the machine has it
			mkdir "/sys/fs/cgroup/$c" && mount -t cgroup -o "$o" cgroup "/sys/fs/cgroup/$c" # our own part: root of the cgroup namespace
		done
	else
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
		mkdir -p /sys/fs/cgroup/init && echo 0 >/sys/fs/cgroup/init/cgroup.procs # processes live in leaves only
		sed 's/\S\S*/+&/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
	fi
	mount -t tmpfs -o mode=755 tmpfs /run
	mount -t tmpfs -o mode=755 tmpfs /var/log
	mount --bind "$S/var-lib-kubelet" /var/lib/kubelet
	mount --bind "$S/resolv.conf" /etc/resolv.conf # nobody in here asks the machine's name servers
	# The kubelet insists on these sysctls and would set them for the whole machine: it finds
	# them as it wants them, in files of ours laid over the real ones; the rest it cannot write.
	mkdir /run/sysctl
	for v in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
		f=/run/sysctl/$(echo "${v%=*}" | tr / .); echo "${v#*=}" >"$f"; mount --bind "$f" "/proc/sys/${v%=*}"
	done
	for d in kernel vm fs; do mount --rbind /proc/sys/$d /proc/sys/$d && mount -o remount,bind,ro /proc/sys/$d; done
	hostname $NODE
	ip link set lo up
	ip link add node0 type veth peer name node0-end && ip addr add $NODE_IP/24 dev node0 && ip link set node0 up && ip link set node0-end up # not every kernel has dummy devices
	ip route add default dev node0 # services' addresses have to leave by some door to be rewritten
	sysctl -qw net.ipv4.ip_forward=1
	sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || say "no bridge-nf-call-iptables"
	mkdir -p /run/containerd "$S/log" "$S/pid" "$S/pod-logs" "$S/volume-plugins"

	start() { local n=$1; shift; "$@" </dev/null >"$S/log/$n.log" 2>&1 & echo $! >"$S/pid/$n"; }
	start etcd etcd --data-dir "$S/etcd" --unsafe-no-fsync --log-level warn \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
	start containerd containerd --config "$S/containerd.toml"
	start apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --bind-address 0.0.0.0 --advertise-address $NODE_IP \
		--tls-cert-file "$S/pki/apiserver.crt" --tls-private-key-file "$S/pki/apiserver.key" --client-ca-file "$S/pki/ca.crt" \
		--token-auth-file "$S/pki/tokens.csv" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
		--service-account-key-file "$S/pki/sa.pub" --service-account-signing-key-file "$S/pki/sa.key" --service-account-issuer https://kubernetes.default.svc.cluster.local \
		--service-cluster-ip-range $SVC_CIDR --allow-privileged \
		--kubelet-preferred-address-types InternalIP \
		--requestheader-client-ca-file "$S/pki/ca.crt" --requestheader-allowed-names front-proxy --requestheader-extra-headers-prefix X-Remote-Extra- \
		--requestheader-group-headers X-Remote-Group --requestheader-username-headers X-Remote-User \
		--proxy-client-cert-file "$S/pki/front-proxy.crt" --proxy-client-key-file "$S/pki/front-proxy.key" --enable-aggregator-routing \
		--kubelet-client-certificate "$S/pki/to-kubelet.crt" --kubelet-client-key "$S/pki/to-kubelet.key"
	start kcm kube-controller-manager --kubeconfig "$S/kcm.kubeconfig" --service-account-private-key-file "$S/pki/sa.key" --root-ca-file "$S/pki/ca.crt" \
		--use-service-account-credentials --leader-elect=false --bind-address 127.0.0.1
	start scheduler kube-scheduler --kubeconfig "$S/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1
	until curl -sf --cacert "$S/pki/ca.crt" https://$NODE_IP:6443/readyz >/dev/null; do sleep 0.2; done
	start kubelet kubelet --config "$S/kubelet.yaml" --kubeconfig "$S/kubelet.kubeconfig" --root-dir "$S/kubelet" \
		--hostname-override $NODE --node-ip $NODE_IP --v=${KUBELET_V:-2}
	start proxy kube-proxy --config "$S/proxy.yaml"
	start netpol netpol "$S/admin.kubeconfig" # NetworkPolicies: the bridge CNI knows nothing of them
	while :; do wait -n 2>/dev/null || sleep 1; done # reaps what is left to it
}

up() {
	[ ! -e "$S/init.pid" ] || { echo "it runs already, or was not ended: $0 down" >&2; exit 1; }
	T0=$(now)
	[ "$(id -u)" = 0 ] || { echo "a node needs root: it makes namespaces and mounts" >&2; exit 1; }
	for f in kubelet etcd coredns netpol runc; do [ -x "$BIN/$f" ] || { echo "$BIN/$f is missing: run build.sh" >&2; exit 1; }; done
	for f in kubectl openssl curl bc ip nsenter; do command -v "$f" >/dev/null || { echo "$f is missing: install it" >&2; exit 1; }; done
	mkdir -p "$S/var-lib-kubelet" /var/lib/kubelet
	certs; configs
	say "certificates and configuration"
	# A cgroup of its own next to the machine's, which becomes the root of the cluster's namespace.
	CGROUP_V1=
	if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then
		for d in /sys/fs/cgroup/*/; do
			c=$(basename "$d")
			grep -qE " $(readlink -f "$d") cgroup " /proc/mounts || continue
			mkdir -p "$d/$CG"
			if [ "$c" = cpuset ]; then
				cat "$d/cpuset.cpus" >"$d/$CG/cpuset.cpus"; cat "$d/cpuset.mems" >"$d/$CG/cpuset.mems"
				echo 1 >"$d/$CG/cgroup.clone_children"
			fi
			CGROUP_V1="$CGROUP_V1 $c"
		done
	else
		mkdir -p "/sys/fs/cgroup/$CG"
	fi
	export CGROUP_V1 S T0
	( # joins the cgroup, then leaves for the namespaces
		for c in ${CGROUP_V1:-.}; do echo $BASHPID >"/sys/fs/cgroup/$c/$CG/cgroup.procs"; done
		exec setsid unshare --net --mount --pid --ipc --uts --cgroup --fork --mount-proc -- bash -c 'echo >"$S/born"; exec "$0" inside' "$here/node.sh"
	) </dev/null >"$S/init.log" 2>&1 &
	local u=$!
	for _ in $(seq 100); do [ -e "$S/born" ] && break; sleep 0.05; done
	pgrep -P $u >"$S/init.pid" # as this machine sees the namespace's first process
	trap 'echo "not up: see $S/log, $S/init.log; $0 down" >&2' ERR
	until ctr_ version >/dev/null 2>&1; do sleep 0.2; done
	say "containerd"
	load "$C"/images/{pause,coredns}.tar
	say "images"
	until kubectl_ get --raw /readyz >/dev/null 2>&1; do sleep 0.3; done
	say "API server"
	kubectl_ apply -f "$here/manifests/coredns.yaml" >/dev/null
	until kubectl_ wait node/$NODE --for=condition=Ready --timeout=60s >/dev/null 2>&1; do sleep 0.3; done
	say "node Ready"
	kubectl_ -n kube-system rollout status deploy/coredns --timeout=120s >/dev/null
	say "CoreDNS: the cluster is up. Memory: $(mem)"
}

mem() { awk '/^total_rss |^anon /{printf "%d MiB without page cache", $2/1048576; exit}' /sys/fs/cgroup/memory/$CG/memory.stat 2>/dev/null || awk '/^anon /{printf "%d MiB without page cache", $2/1048576}' /sys/fs/cgroup/$CG/memory.stat; }

down() {
	if [ -s "$S/init.pid" ]; then
		local p; p=$(init)
		# Only the process that we started: its command line says so.
		if tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q "node.sh inside"; then kill -KILL "$p"; fi
		for _ in $(seq 100); do [ -d "/proc/$p" ] || break; sleep 0.1; done
	fi
	for d in /sys/fs/cgroup/*/$CG /sys/fs/cgroup/$CG; do
		[ -d "$d" ] || continue
		for _ in $(seq 50); do find "$d" -depth -type d -exec rmdir {} + 2>/dev/null || true; [ -d "$d" ] || break; sleep 0.1; done
		[ ! -d "$d" ] || echo "left: $d" >&2
	done
	rm -rf "$S"
	rmdir /var/lib/kubelet 2>/dev/null || true
}

kubectl_() { nsenter --target "$(init)" --net -- kubectl --kubeconfig "$S/admin.kubeconfig" "$@"; }
ctr_() { nsenter --target "$(init)" --all -- "$BIN/ctr" -a /run/containerd/containerd.sock -n k8s.io "$@"; }
load() { for t; do ctr_ images import "$(realpath "$t")" >/dev/null; done; }

case ${1:-} in
up) up ;;
down) down ;;
inside) inside ;;
kubectl) shift; kubectl_ "$@" ;;
ctr) shift; ctr_ "$@" ;;
load) shift; load "$@" ;;
exec) shift; exec nsenter --target "$(init)" --net -- "$@" ;;
enter) shift; exec nsenter --target "$(init)" --all -- "$@" ;;
mem) mem; echo ;;
*) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
