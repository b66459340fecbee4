module signalbox.dev/deploy/e2e/kube/images

go 1.26.0
