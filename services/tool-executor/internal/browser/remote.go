package browser

import (
	"context"
	"hash/fnv"

	"signalbox.dev/pkg/identity"
	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	"signalbox.dev/proto/signalbox/browser/v1/browserv1connect"
)

// Name is the name of the service, for which callers sign their identity.
const Name = "browser"

// Spread returns a client that sends all calls of a session to the same one of clients, of which
// there must be one at least.
func Spread(clients []browserv1connect.BrowserServiceClient) browserv1connect.BrowserServiceClient {
	return spread(clients)
}

type spread []browserv1connect.BrowserServiceClient

func (s spread) of(ctx context.Context) browserv1connect.BrowserServiceClient {
	actor, _ := identity.From(ctx)
	h := fnv.New32a()
	_, _ = h.Write([]byte(actor.Session.String())) // never fails
	return s[int(h.Sum32())%len(s)]
}

// Open implements browserv1connect.BrowserServiceClient.
func (s spread) Open(ctx context.Context, req *browserv1.OpenRequest) (*browserv1.OpenResponse, error) {
	return s.of(ctx).Open(ctx, req)
}

// Read implements browserv1connect.BrowserServiceClient.
func (s spread) Read(ctx context.Context, req *browserv1.ReadRequest) (*browserv1.ReadResponse, error) {
	return s.of(ctx).Read(ctx, req)
}

// Click implements browserv1connect.BrowserServiceClient.
func (s spread) Click(ctx context.Context, req *browserv1.ClickRequest) (*browserv1.ClickResponse, error) {
	return s.of(ctx).Click(ctx, req)
}

// Type implements browserv1connect.BrowserServiceClient.
func (s spread) Type(ctx context.Context, req *browserv1.TypeRequest) (*browserv1.TypeResponse, error) {
	return s.of(ctx).Type(ctx, req)
}

// Screenshot implements browserv1connect.BrowserServiceClient.
func (s spread) Screenshot(ctx context.Context, req *browserv1.ScreenshotRequest) (*browserv1.ScreenshotResponse, error) {
	return s.of(ctx).Screenshot(ctx, req)
}
