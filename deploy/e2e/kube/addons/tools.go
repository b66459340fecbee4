//go:build tools

// Package addons pins what a node needs besides Kubernetes. Its go.mod repeats Kubernetes'
// versions, so that both share the build cache.
package addons

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
