package main

import (
	"context"
	"fmt"

	"signalbox.dev/services/e2e/stops"
	"signalbox.dev/services/e2e/world"
)

// stopsOfTools measures how long the far end of a running tool stays connected after a stop, for
// each kind of tool.
func stopsOfTools(ctx context.Context, b *bench) error {
	r, err := stops.Start(ctx, world.Options{Env: unlimited}, b.world)
	if err != nil {
		return err
	}
	defer quietly(r.Close)
	for _, k := range stops.Kinds {
		if why := r.Missing(k); why != "" {
			fmt.Fprintf(b.out, "  %s is left out: %s\n", k.Name, why)
			continue
		}
		took := make(sample, b.times(100))
		for i := range took {
			if took[i], err = r.Stop(ctx, k); err != nil {
				return err
			}
		}
		b.times3("stop while the tool uses "+k.Name+": to the closed connection", took)
	}
	return nil
}
