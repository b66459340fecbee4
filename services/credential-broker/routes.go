package credentialbroker

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// routes returns the handler of the one listener:
//
//	/egress/<provider>/<path…>   any provider's API (internal/proxy)
//	/signalbox.credential.v1.…   Connect (rpc.go)
//	/health /ready /metrics      operators
func (s *Service) routes() (http.Handler, error) {
	opts, err := rpc.Server{Verifier: s.deps.Verifier, Log: s.deps.Log}.HandlerOptions()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	srv := &server{s.accounts, s.pool}
	opts = append(opts, connect.WithInterceptors(connect.UnaryInterceptorFunc(srv.authorize)))
	mux.Handle(credentialv1connect.NewAccountServiceHandler(srv, opts...))
	mux.Handle(credentialv1connect.NewConnectionServiceHandler(srv, opts...))
	httpserver.Ops{Checks: s.checks(), Gatherer: s.deps.Gatherer, Log: s.deps.Log}.Mount(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not through the mux, which would clean the path and redirect: providers' paths are
		// forwarded unchanged, or refused in the provider's error format.
		if strings.HasPrefix(r.URL.Path, proxy.Prefix) {
			s.proxy.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// checks reports whether stored accounts can be read.
func (s *Service) checks() map[string]httpserver.Check {
	if f := s.accounts.File; f != nil {
		return map[string]httpserver.Check{"accounts": func(ctx context.Context) error { _, err := f.View(ctx); return err }}
	}
	return map[string]httpserver.Check{"postgres": s.deps.DB.Ping}
}
