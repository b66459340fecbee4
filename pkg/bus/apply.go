package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/subject"
)

// Apply creates the streams and consumers of t and updates those that differ.
// It deletes nothing, ever. b must be connected as subject.Admin where the server checks
// permissions. A setting that cannot be changed on what exists is an error that
// says what to do. Applying twice, or twice at once, is harmless.
func Apply(ctx context.Context, b *Bus, t subject.Topology) error {
	ctx, cancel := atMost(ctx, 30*time.Second)
	defer cancel()
	if err := b.awaitFirst(ctx); err != nil {
		return fmt.Errorf("apply the bus topology: %w", err)
	}
	for _, s := range t.Streams {
		err := patiently(ctx, func(ctx context.Context) error {
			_, err := b.js.CreateOrUpdateStream(ctx, s.Config)
			return err
		})
		if err != nil {
			return fmt.Errorf("create or update stream %s: %w%s", s.Config.Name, translate(err), advice(err, "stream "+s.Config.Name))
		}
		for _, c := range s.Consumers {
			err := patiently(ctx, func(ctx context.Context) error {
				_, err := b.js.CreateOrUpdateConsumer(ctx, s.Config.Name, c)
				return err
			})
			if err != nil {
				what := "consumer " + c.Durable + " of stream " + s.Config.Name
				return fmt.Errorf("create or update %s: %w%s", what, translate(err), advice(err, what))
			}
		}
	}
	return nil
}

// patiently repeats do while the server does not answer, or says that it cannot
// yet, as a cluster without a leader does; until ctx is done.
func patiently(ctx context.Context, do func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(attempt)
		cancel()
		api, _ := errors.AsType[*jetstream.APIError](err)
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(translate(err), ErrDisconnected)
		if !silent && (api == nil || api.ErrorCode != codeNotAvailable && api.ErrorCode != codeNoPeers) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(resendPause):
		}
	}
}

// Server error codes that Apply can give advice on.
const (
	codeNoPeers         = 10005 // not as many servers as replicas, yet
	codeNotAvailable    = 10008 // no leader yet
	codeNoStorage       = 10047
	codeInvalidConfig   = 10052
	codeSubjectOverlap  = 10065
	codeNoReplicas      = 10074
	codeConsumerInvalid = 10012
)

func advice(err error, what string) string {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "; enable JetStream on the server (see deploy/nats/nats.conf)"
	case errors.Is(err, context.DeadlineExceeded):
		return "; is the server up, and is this the " + subject.Admin + " user? Others may not administer streams"
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return ""
	}
	switch api.ErrorCode {
	case codeNoStorage:
		return "; raise max_file_store on the server: every stream reserves its MaxBytes"
	case codeNoReplicas, codeNoPeers:
		return "; this server is no cluster of that size: set the replicas to 1, or add servers"
	case codeSubjectOverlap:
		return "; another stream takes these subjects: remove it by hand if it is left over (nats stream ls, nats stream rm)"
	case codeInvalidConfig, codeConsumerInvalid:
		return "; this setting cannot be changed on the " + what + " that exists: stop the services, remove it by hand " +
			"(it holds no truth: unfinished runs are queued again from Postgres) and apply again"
	}
	return ""
}
