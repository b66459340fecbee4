package egress

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// ConnectURL is where a person connects a service, at the gateway.
const ConnectURL = "/api/connections"

const (
	connectionsFor     = 5 * time.Second        // how long an answer of the broker is used
	connectionsTimeout = 750 * time.Millisecond // how long a listing waits for one
	maxWorkspaces      = 4096
)

// connections knows which providers workspaces have connected.
type connections struct {
	client credentialv1connect.ConnectionServiceClient
	flight singleflight.Group

	mu    sync.Mutex // guards known
	known map[id.Workspace]standing
}

// standing is how a workspace's connections stand, by provider.
type standing struct {
	all   map[string]*credentialv1.Connection
	until time.Time
}

func newConnections(c credentialv1connect.ConnectionServiceClient) *connections {
	return &connections{client: c, known: map[id.Workspace]standing{}}
}

// Available reports whether the context's workspace has connected a provider. The broker is
// asked at most once every few seconds for each workspace. If it does not answer in time, the
// last answer holds; without one the tool counts as available, and its call says what is wrong.
func (c *Client) Available(ctx context.Context, provider string) tool.Availability {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return tool.Availability{Reason: "nobody is signed in"}
	}
	con := c.connections.of(ctx, actor)[provider]
	name := title(provider)
	switch con.GetState() {
	case credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED:
		return tool.Availability{Reason: name + " is not set up: " + con.GetReason()}
	case credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED:
		return tool.Availability{
			Reason: name + " is not connected", ConnectURL: ConnectURL,
			Cause: &tool.Cause{Code: tool.NotConnected, Service: provider},
		}
	case credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE:
		return tool.Availability{
			Reason: name + " has to be connected again: " + con.GetReason(), ConnectURL: ConnectURL,
			Cause: &tool.Cause{Code: tool.ConnectionRefused, Service: provider, Reason: con.GetReason()},
		}
	case credentialv1.ConnectionState_CONNECTION_STATE_DISABLED:
		return tool.Availability{
			Reason: "an owner has disabled the connection to " + name,
			Cause:  &tool.Cause{Code: tool.ConnectionDisabled, Service: provider},
		}
	}
	return tool.Availability{Available: true}
}

func (c *connections) of(ctx context.Context, actor identity.Actor) map[string]*credentialv1.Connection {
	c.mu.Lock()
	s := c.known[actor.Workspace]
	c.mu.Unlock()
	if time.Now().Before(s.until) {
		return s.all
	}
	// The reading is shared, so it does not end with the context of the one who began it.
	ch := c.flight.DoChan(actor.Workspace.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectionsTimeout)
		defer cancel()
		res, err := c.client.ListConnections(ctx, &credentialv1.ListConnectionsRequest{})
		s := s // the caller may return the old one meanwhile
		if err == nil {
			s.all = map[string]*credentialv1.Connection{}
			for _, con := range res.GetConnections() {
				s.all[con.GetProvider()] = con
			}
		}
		s.until = time.Now().Add(connectionsFor) // an unavailable broker is not asked more often
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.known) >= maxWorkspaces {
			clear(c.known)
		}
		c.known[actor.Workspace] = s
		return s.all, nil
	})
	select {
	case r := <-ch:
		all, _ := r.Val.(map[string]*credentialv1.Connection)
		return all
	case <-ctx.Done():
		return s.all
	}
}

// title is a provider's name for people.
func title(provider string) string {
	switch provider {
	case "github":
		return "GitHub"
	case "":
		return "the provider"
	}
	return strings.ToUpper(provider[:1]) + provider[1:]
}
