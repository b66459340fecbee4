package credentialbroker

import (
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
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": s.deps.DB.Ping},
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
