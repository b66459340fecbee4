package credentialbroker

import (
	"context"
	"net/http"
	"strings"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// routes returns all doors behind the one listener:
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
	mux.Handle(credentialv1connect.NewAccountServiceHandler(&accountServer{s.accounts, s.pool}, opts...))
	mux.Handle(credentialv1connect.NewConnectionServiceHandler(&connectionServer{s.accounts, s.pool}, opts...))
	httpserver.Ops{
		Checks:   s.checks(),
		Gatherer: s.deps.Gatherer,
	}.Mount(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Past the mux, which would clean a path and redirect to it: providers'
		// paths are forwarded as they are, or refused in the provider's words.
		if strings.HasPrefix(r.URL.Path, proxy.Prefix) {
			s.proxy.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// checks says whether what is stored can be read.
func (s *Service) checks() map[string]httpserver.Check {
	if f := s.accounts.file; f != nil {
		return map[string]httpserver.Check{"accounts": func(ctx context.Context) error { _, err := f.View(ctx); return err }}
	}
	return map[string]httpserver.Check{"postgres": s.deps.DB.Ping}
}
