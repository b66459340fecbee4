package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/subject"
)

// Apply creates the streams and consumers of t and updates those that differ. It never
// deletes anything. If the server checks permissions, b must be connected as subject.Admin.
// A setting that cannot be changed on an existing stream is an error with advice. Repeated
// and concurrent calls are harmless.
func Apply(ctx context.Context, b *Bus, t subject.Topology) error {
	ctx, cancel := atMost(ctx, 30*time.Second)
	defer cancel()
	if err := b.awaitFirst(ctx); err != nil {
		return fmt.Errorf("apply the bus topology: %w", err)
	}
	for _, s := range t.Streams {
		err := retryUnavailable(ctx, func(ctx context.Context) error {
			_, err := b.js.CreateOrUpdateStream(ctx, s.Config)
			return err
		})
		if err != nil {
			return fmt.Errorf("create or update stream %s: %w%s", s.Config.Name, translate(err), advice(err, "stream "+s.Config.Name))
		}
		for _, c := range s.Consumers {
			err := retryUnavailable(ctx, func(ctx context.Context) error {
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

// retryUnavailable repeats do until ctx is done while the server does not reply or is not
// available yet, such as a cluster without a leader.
func retryUnavailable(ctx context.Context, do func(context.Context) error) error {
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
	codeNoPeers         = 10005 // fewer servers than replicas, yet
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
		return "; check that the server is up, and that the user is the " + subject.Admin + ": others may not administer streams"
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
		return "; another stream has these subjects: if it is a leftover, delete it (nats stream ls, nats stream rm)"
	case codeInvalidConfig, codeConsumerInvalid:
		return "; this setting cannot be changed on the existing " + what + ": stop the services, delete it " +
			"(unfinished runs are queued again from Postgres) and apply again"
	}
	return ""
}
