package main

import (
	"context"
	"errors"
	"os"
	"regexp"
)

var loaded = regexp.MustCompile(`Loaded image: signalbox/gateway:(\S+)`)

// release starts the images of an archive that `make dist` has made.
func release(ctx context.Context, r *rig) error {
	archive, err := os.Open(r.images)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }() // only read
	// By standard input: the engine of engine.sh has files of its own.
	out, err := r.output(ctx, archive, nil, "docker", "load")
	if err != nil {
		return err
	}
	found := loaded.FindSubmatch(out)
	if found == nil {
		return errors.New("docker load names no image of the gateway: " + string(out))
	}
	r.variables = []string{"TAG=" + string(found[1])}
	defer func() { r.variables = nil }()
	if err := r.up(ctx, "--no-build"); err != nil {
		return err
	}
	image, err := r.inspect(ctx, project+"-gateway-1", "{{.Config.Image}}")
	if err == nil && image != "signalbox/gateway:"+string(found[1]) {
		err = errors.New("the gateway runs " + image)
	}
	if err != nil {
		return err
	}
	r.say("   version %s", found[1])
	r.variables = nil
	return r.up(ctx, "--no-build")
}
