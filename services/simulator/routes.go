package simulator

import (
	"net/http"
	"strings"

	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/simulator/authserver"
	"signalbox.dev/services/simulator/internal/anthropic"
	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/openai"
	"signalbox.dev/services/simulator/internal/script"
)

// routes registers every path.
func (s *Simulator) routes() *http.ServeMux {
	mux := http.NewServeMux()
	anthropicAPI, openaiAPI, router := s.anthropic(), s.openai(chat.OpenAI), s.openai(chat.OpenRouter)

	for _, prefix := range []string{"", "/anthropic"} {
		mux.HandleFunc("POST "+prefix+"/v1/messages", s.answer(anthropicAPI))
		mux.HandleFunc("POST "+prefix+"/v1/messages/count_tokens", s.countTokens(anthropicAPI))
	}
	for prefix, d := range map[string]*api{"": openaiAPI, "/openai": openaiAPI, "/openrouter/api": router} {
		mux.HandleFunc("POST "+prefix+"/v1/chat/completions", s.answer(d))
	}
	for prefix, d := range map[string]*api{"/anthropic": anthropicAPI, "/openai": openaiAPI, "/openrouter/api": router} {
		mux.HandleFunc("GET "+prefix+"/v1/models", s.models(d))
		mux.HandleFunc("GET "+prefix+"/v1/models/{id...}", s.model(d))
	}
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) { s.models(apiOf(r, anthropicAPI, openaiAPI))(w, r) })
	mux.HandleFunc("GET /v1/models/{id...}", func(w http.ResponseWriter, r *http.Request) { s.model(apiOf(r, anthropicAPI, openaiAPI))(w, r) })

	oauth := authserver.New(authserver.Settings{Rotate: true})
	mux.Handle("/oauth/", http.StripPrefix("/oauth", oauth))
	if s.cfg.Services {
		services := apis.New(apis.Config{Good: oauth.Good})
		for _, prefix := range []string{"/google/", "/notion/", "/github/"} {
			mux.Handle(prefix, services)
		}
		mux.Handle("POST /simulator/services/faults", http.StripPrefix("/simulator/services", services))
	}

	mux.HandleFunc("GET /simulator/scripts", s.listScripts)
	mux.HandleFunc("PUT /simulator/scripts/{name}", s.putScript)
	mux.HandleFunc("DELETE /simulator/scripts/{name}", s.removeScript)
	mux.HandleFunc("GET /simulator/requests", s.requests)
	mux.HandleFunc("GET /simulator/streams", s.streams)
	mux.HandleFunc("POST /simulator/reset", s.reset)

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d := apiOf(r, anthropicAPI, openaiAPI)
		if strings.HasPrefix(r.URL.Path, "/openrouter/") {
			d = router
		}
		f := &chat.Fault{Kind: chat.NotFound, Message: "Nothing here: " + r.Method + " " + r.URL.Path}
		d.refuse(w, f, "")
	})
	return mux
}

// apiOf returns the API of a request at the root, by its path and headers.
func apiOf(r *http.Request, anthropicAPI, openaiAPI *api) *api {
	anthropicHeader := r.Header.Get("Anthropic-Version") != "" || r.Header.Get("X-Api-Key") != ""
	if strings.HasPrefix(r.URL.Path, "/anthropic/") || anthropicHeader && !strings.HasPrefix(r.URL.Path, "/openai/") {
		return anthropicAPI
	}
	return openaiAPI
}

// models answers GET /v1/models with the ids that select a script.
func (s *Simulator) models(d *api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, f := d.credential(r.Header); f != nil {
			d.refuse(w, f, "")
			return
		}
		var ids []string
		for _, l := range s.scripts.List() {
			if len(l.Models) > 0 {
				ids = append(ids, l.Models...)
				continue
			}
			ids = append(ids, script.ModelPrefix+l.Name)
		}
		body, err := d.list(ids)
		s.writeModels(w, r, body, err)
	}
}

func (s *Simulator) model(d *api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, f := d.credential(r.Header); f != nil {
			d.refuse(w, f, "")
			return
		}
		id := r.PathValue("id")
		if s.scripts.Find(id) == nil {
			d.refuse(w, d.unknown(id), "")
			return
		}
		body, err := d.one(id)
		s.writeModels(w, r, body, err)
	}
}

func (s *Simulator) writeModels(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	if err != nil {
		s.log.ErrorContext(r.Context(), "models not encoded", "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may have left
}

// anthropic returns the Messages API.
func (s *Simulator) anthropic() *api {
	return &api{
		dialect:    chat.Anthropic,
		credential: anthropic.Credential,
		check:      anthropic.Version,
		decode:     func(b []byte) (*chat.Request, *chat.Fault) { return anthropic.Decode(b, false) },
		account:    s.cache.Marked,
		encoder: func(a *chat.Answer, req *chat.Request, seed chat.Seed) encoder {
			return anthropic.NewEncoder(a, req.Model, seed)
		},
		requestID: anthropic.RequestID,
		header: func(h http.Header, id string) {
			h.Set("Request-Id", id)
			anthropic.Limits(h, s.now())
		},
		refuse:  anthropic.Refuse,
		unknown: func(model string) *chat.Fault { return &chat.Fault{Kind: chat.NotFound, Message: "model: " + model} },
		ping:    anthropic.Ping,
		comment: ": keep-alive\n\n",
		list:    anthropic.Models,
		one:     anthropic.Model,
	}
}

// openai returns the Chat Completions API in one of its dialects.
func (s *Simulator) openai(dialect chat.Dialect) *api {
	d := &api{
		dialect:    dialect,
		credential: openai.Credential,
		check:      func(http.Header) *chat.Fault { return nil },
		decode:     func(b []byte) (*chat.Request, *chat.Fault) { return openai.Decode(b, dialect) },
		account:    s.cache.Automatic,
		encoder: func(a *chat.Answer, req *chat.Request, seed chat.Seed) encoder {
			return openai.NewEncoder(a, req, seed, s.now())
		},
		requestID: openai.RequestID,
		header: func(h http.Header, id string) {
			if dialect == chat.OpenAI {
				h.Set("X-Request-Id", id)
				openai.Limits(h)
			}
		},
		refuse: func(w http.ResponseWriter, f *chat.Fault, id string) (int, int64) {
			return openai.Refuse(w, f, dialect, id)
		},
		unknown: func(model string) *chat.Fault {
			return &chat.Fault{
				Kind: chat.NotFound, Code: "model_not_found",
				Message: "The model `" + model + "` does not exist or you do not have access to it.",
			}
		},
		comment: ": keep-alive\n\n",
		list:    func(ids []string) ([]byte, error) { return openai.Models(ids, dialect) },
		one:     func(id string) ([]byte, error) { return openai.Model(id, dialect) },
	}
	if dialect == chat.OpenRouter {
		d.comment = openai.Comment
		d.unknown = func(model string) *chat.Fault {
			return &chat.Fault{Kind: chat.Invalid, Message: model + " is not a valid model ID"}
		}
	}
	return d
}
