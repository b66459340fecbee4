# Signalbox. `make help` lists the targets.
#
# One set of flags for everything that is compiled, so that programs, tests and
# linters share the build cache. -trimpath and -buildvcs=false make a binary depend
# on its sources alone.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false)
# Programs need no C. Tests under the race detector do: see test-race.
export CGO_ENABLED ?= 0

MODULES  := ./proto/... ./pkg/... ./services/...
# All but the end-to-end stories, which build and start everything.
UNITS     = $(shell go list $(MODULES) | grep -v /services/e2e)
COMMANDS := $(patsubst %/main.go,./%,$(wildcard services/*/cmd/*/main.go))
# The end-to-end tests' own programs, which nobody else needs.
HELPERS  := $(filter ./services/e2e/%,$(COMMANDS))
COMMANDS := $(filter-out $(HELPERS),$(COMMANDS))
SERVICES := $(notdir $(COMMANDS))

# The generators and linters are a module outside of go.work.
TOOLS    := $(CURDIR)/bin/tools
GO_TOOLS := GOWORK=off go -C tools

# $(call any,A B) is A|B.
empty :=
any = $(subst $(empty) ,|,$(strip $(1)))

# One PostgreSQL for all tests of a run; testreport prints the totals.
WITHPG := go run ./pkg/pgtest/withpg --
REPORT := $(TOOLS)/testreport
PHASE  := PHASES='$(CURDIR)/bin/phases' sh tools/phase.sh

# -count=1: the test cache does not see the programs, scripts and settings that tests use.
# -vet=off: `make lint` runs vet.
GO_TEST := go test -json -vet=off -count=1 -timeout 15m
# Packages to test at once. Most of them mostly wait.
AT_ONCE := -p 4

.DEFAULT_GOAL := help
.PHONY: help run build test test-short e2e e2e-kill e2e-pooler e2e-faults e2e-editing e2e-hostile e2e-compose e2e-kube e2e-oauth e2e-streams e2e-metrics race mutants simulate translated oracle conformance docs gen gen-check lint images dist dist-check clean setup
.PHONY: need-go test-race test-go test-calm test-e2e test-kill test-faults test-failures test-documents test-clients test-console test-alone test-outside
.PHONY: bench bench-go bench-load bench-mux bench-oracle bench-peers bench-scale bench-yjs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

## ---- running

run: setup build ## Build and start everything in one process (ARGS="--http 127.0.0.1:9000" for more)
	@exec bin/signalbox up $(ARGS)

run-%: setup ## Run each service as a program of its own, and watch one (make run-gateway)
	@go run ./services/e2e/run $*

setup: need-go ## Install what running and testing needs: a private PostgreSQL if there is none
	@sh tools/need.sh git
	@sh tools/setup.sh

need-go:
	@sh tools/need.sh go

# The console is embedded in the binaries, so it is built first. Without Node they have none, and say so.
CONSOLE := services/console
CONSOLE_SOURCES := $(shell find $(CONSOLE)/src $(CONSOLE)/packages $(CONSOLE)/public $(CONSOLE)/*.json $(CONSOLE)/*.ts $(CONSOLE)/index.html -type f -not -path '*/node_modules/*' -not -path '*/client/dist/*')
.PHONY: console
console: ## Build the web console into services/console/dist
	@if sh tools/need.sh node 2>/dev/null; then $(MAKE) -s --no-print-directory $(CONSOLE)/dist/index.html; \
	else echo "Without Node the console is left out: install Node 20.19 or newer, and build again."; fi

$(CONSOLE)/dist/index.html: $(CONSOLE)/node_modules/.installed $(CONSOLE_SOURCES)
	@cd $(CONSOLE) && npm run --silent build

build: need-go console ## Build the programs into bin/ (VERSION=1.2.3 sets the version that they report)
	@mkdir -p bin
	@echo "Building $(SERVICES). The first time takes a minute or two."
	@go build $(if $(VERSION),-ldflags "-X signalbox.dev/pkg/process.version=$(VERSION)") -o bin/ $(COMMANDS)

# The end-to-end tests also start helpers of their own and a separate NATS server.
.PHONY: build-e2e
build-e2e: build
	@go build -o bin/ $(HELPERS) github.com/nats-io/nats-server/v2

images: ## Build a container image of each program (TAG=dev)
	@command -v docker >/dev/null && docker info >/dev/null 2>&1 || { \
		echo "No Docker engine is running: start one, or use 'make build' to build without images." >&2; exit 1; }
	@set -e; for service in $(SERVICES); do \
		echo "Building signalbox/$$service:$(or $(TAG),dev)"; \
		target=; [ "$$service" != browser ] || target="--target browser"; \
		docker build -f deploy/Dockerfile $$target --build-arg SERVICE=$$service --build-arg VERSION=$(VERSION) -t signalbox/$$service:$(or $(TAG),dev) .; \
	done

dist: need-go console ## Make the files of a release in bin/dist: programs, images, chart, SBOM (VERSION=1.2.3)
	@GOWORK=off go -C deploy/dist run . -source ../.. -out ../../bin/dist -version "$(or $(VERSION),0.0.0-$(shell git rev-parse --short HEAD))"

dist-check: ## Make them twice, in two clones, and compare the two (VERSION=1.2.3)
	@sh deploy/dist/twice.sh $(or $(VERSION),0.0.0-check)

clean: ## Remove what was built; data (.signalbox) and downloads stay
	rm -rf bin

## ---- testing

# The end-to-end tests use the programs that were just built.
test e2e e2e-kill e2e-pooler e2e-faults e2e-editing e2e-hostile e2e-streams e2e-metrics screenshots bench-load bench-scale: export SIGNALBOX_E2E_BIN := $(CURDIR)/bin

test: setup ## Run every test: unit, integration, end to end, clients, deployment
	@mkdir -p bin && rm -f bin/phases
	@$(MAKE) --no-print-directory -j 3 build-e2e $(REPORT) clients
	@$(WITHPG) $(MAKE) --no-print-directory test-phases

# Runs under one PostgreSQL. A phase that fails does not stop the later ones. What mostly computes
# runs beside what mostly waits, whose output follows. The last two have the machine for themselves.
.PHONY: test-phases test-computing test-waiting
test-phases:
	@$(MAKE) --no-print-directory test-waiting >bin/waiting.log 2>&1 & \
	$(MAKE) --no-print-directory test-computing || echo 'FAILED           the Go tests broke off' >>bin/phases; \
	wait $$! || echo 'FAILED           what runs beside the Go tests broke off' >>bin/phases; cat bin/waiting.log
	@$(PHASE) 'failing providers' $(MAKE) --no-print-directory test-failures
	@$(PHASE) 'kills' $(MAKE) --no-print-directory test-kill
	@$(PHASE) --summary

test-computing:
	@$(PHASE) 'Go tests' $(MAKE) --no-print-directory test-go
	@$(PHASE) 'Go tests under the race detector' $(MAKE) --no-print-directory test-race
	@$(PHASE) 'Go tests of size, and of one goroutine' $(MAKE) --no-print-directory test-calm
	@$(PHASE) 'documents' $(MAKE) --no-print-directory test-documents

test-waiting:
	@$(PHASE) 'modules alone (GOWORK=off)' $(MAKE) --no-print-directory test-alone
	@$(PHASE) 'layout and deployment' $(MAKE) --no-print-directory test-outside
	@$(PHASE) 'npm clients' $(MAKE) --no-print-directory test-clients
	@$(PHASE) 'faults' $(MAKE) --no-print-directory test-faults
	@$(PHASE) 'console' $(MAKE) --no-print-directory test-console
	@$(PHASE) 'end to end' $(MAKE) --no-print-directory test-e2e

# Packages that the race detector covers are not tested again without it.
test-go:
	@PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || sh tools/phase.sh --left-out "services behind a connection pooler: there is no pgbouncer here (apt-get install pgbouncer)."
	@node $(FIND_CHROMIUM) --system || sh tools/phase.sh --left-out "the browser tools: there is no Chromium here (apt-get install chromium bubblewrap)."
	@$(REPORT) $(GO_TEST) $(AT_ONCE) $(if $(CC_THERE),$(filter-out $(RACE),$(UNITS)),$(UNITS))

# The stories, and the tests of the end-to-end helpers. Stories mostly wait, too.
test-e2e:
	@command -v prometheus >/dev/null || sh tools/phase.sh --left-out "the dashboard's queries: they need prometheus (Debian's package prometheus)."
	@cd bench/oracle && GOWORK=off go build -o $(CURDIR)/bin/ ./call
	@$(REPORT) $(GO_TEST) -parallel 3 $(filter-out %/kill %/faults %/failures %/editing %/monitoring %/browser,$(shell go list ./services/e2e/...))

# Short versions of `make e2e-kill`, alone on the machine, and of `make e2e-faults`.
test-kill:
	@$(REPORT) $(GO_TEST) ./services/e2e/kill

test-faults:
	@$(REPORT) $(GO_TEST) -run '^TestFaults$$' ./services/e2e/faults

# Every classic failure of a provider, and a short version of `make e2e-streams`.
test-failures:
	@$(REPORT) $(GO_TEST) ./services/e2e/failures

# People and agents in live documents: npm clients, a browser, and a short version of
# `make e2e-editing`.
test-documents:
	@if without=$$(node $(FIND_CHROMIUM) 2>&1); then browser=./services/e2e/browser; \
	else browser=; sh tools/phase.sh --left-out "documents in a browser. $$without"; fi; \
	$(REPORT) $(GO_TEST) -p 1 $$browser ./services/e2e/editing

# Packages with goroutines of their own; the packages that they use are covered through
# them. Those that take longest come first. The race detector needs a C compiler.
RACE_ROOTS := $(addprefix ./services/,$(addsuffix /...,gateway agent-runner tool-executor document-sync credential-broker simulator)) \
	$(addprefix ./pkg/,$(addsuffix /...,bus fair httpserver identity mux natsd panics pg rpc sse))
ONE_GOROUTINE := llm modelmsg preset structured compact clienttool scan transform usage prompt tool tools script tally wire field openai anthropic dialect profile edit \
	conversation run presence yproto audit opencode rotation chat mcpserver owner target discover
# Not covered either: tests that mostly wait for a Chromium.
ONE_GOROUTINE += browser
# `make race` covers these too: what they share is in PostgreSQL, in files or in another program.
SHARED_OUTSIDE := agent-runner/internal/archive agent-runner/internal/budget credential-broker/internal/accountfile pkg/natsd services/simulator
RACE_LONG = $(shell go list $(RACE_ROOTS) | grep -vE '/internal/($(call any,$(ONE_GOROUTINE)))(/|$$)|/credential-broker/(internal/store|kms)$$|/migrations$$|/cmd/')
RACE     ?= $(shell echo '$(RACE_LONG)' | tr ' ' '\n' | grep -vE '/($(call any,$(SHARED_OUTSIDE)))(/|$$)')
CC_THERE  = $(shell command -v "$$(go env CC)")

# Tests of those packages that the race detector would only slow down: tests of a single
# goroutine, of size, of memory, of slow hashes, and of other processes.
CALM := $(addprefix Test, \
	PublicServers HostileProcesses ProcessesEndWithUs IdleProcess RestartOfProcess SecretsOfProcess Operator Stall Network Sandbox HostileInputs ImportKeysAtOnce ImportForAnother RefusedUpdateIsResent \
	PlantsAreFound Backlogs IdleMemory IdleMemoryHocuspocus HugeAnswers SessionFull \
	LargeDocument ListOfAll HistoryIsBoundedInBytes DocumentsThatWereMarkdown RepeatedAppendToAFullDocument SlowUpdates WaitingIsInSnapshots \
	Histories Simulation SimulationInFlight \
	EverySplit CredentialAtEverySplit CredentialInRandomPieces FramesOverlong FramesOverlongSplits OverlongEvents TranslatedStreams)
# `make race` covers these too: long tests that do one thing after the other, and the gateway's
# answers to one request at a time, but for tests whose names other packages have.
ONE_REQUEST = $(filter-out $(addprefix Test,Audit Catalogue Documents Errors ListSessions Limits Reference Roles ServiceUnavailable Sessions Share Tools), \
	$(filter Test%,$(shell grep -hoE '^func Test[A-Za-z0-9_]*' $(patsubst %,services/gateway/%_test.go, \
	auth branch browser mcpservers oidc openapi precondition reference rest sealed shares signin))))
CALM_SHORT = $(CALM) $(addprefix Test,LongConversation AccountsAtRandom SeedsOfThePreviousRelease Hostile Pictures ImpossibleCursors UnreadAnswerIsDropped \
	ImportLost HybridByTheBook) $(ONE_REQUEST)
# Tests that run both ways, with different sizes.
CALM_TOO := TestSeeds TestRowsArePostgres

test-race:
	@if [ -n "$(CC_THERE)" ]; then \
		CGO_ENABLED=1 $(REPORT) $(GO_TEST) $(AT_ONCE) -race -skip '^($(call any,$(CALM_SHORT)))$$' $(RACE); \
	else \
		sh tools/phase.sh --left-out "the race detector: it needs a C compiler, and there is no $$(go env CC) here."; \
	fi

test-calm:
	@if [ -n "$(CC_THERE)" ]; then \
		$(REPORT) $(GO_TEST) -run '^($(call any,$(CALM_SHORT) $(CALM_TOO)))$$' \
			$$(dirname $$(grep -slE '^func ($(call any,$(CALM_SHORT) $(CALM_TOO)))\(' $(patsubst signalbox.dev/%,./%/*_test.go,$(RACE))) | sort -u); \
	else \
		echo "They ran with the others."; \
	fi

test-clients: clients
	@cd services/e2e/node && node --test

# The console's units, and people who use it and the pages of examples/ in a browser.
test-console: $(CONSOLE)/dist/index.html services/e2e/node/node_modules/.installed
	@units=0; (cd $(CONSOLE) && npx vitest run) || units=$$?; \
	if without=$$(node $(FIND_CHROMIUM) 2>&1); then (cd $(CONSOLE) && node test/run.mjs) || exit; \
	else sh tools/phase.sh --left-out "the console in a browser. $$without"; fi; \
	exit $$units

screenshots: setup build-e2e clients $(CONSOLE)/node_modules/.installed ## Take a picture of every page of the console, in both themes and widths, in bin/screenshots
	@rm -rf bin/screenshots
	@cd $(CONSOLE) && SCREENSHOTS=$(CURDIR)/bin/screenshots node --test --test-name-pattern '^every page' test/*.test.mjs >/dev/null
	@ls bin/screenshots

# Each module compiles without the workspace, as it does for its importers. It does if that
# selects the same source: one directory for each package, with the version in its name.
# Only where it does not, compiling tells more.
SOURCES := list -deps -f '{{.Dir}}' ./...
test-alone:
	@set -e; for module in proto pkg services; do \
		alone=$$(GOWORK=off go -C $$module $(SOURCES)); together=$$(go -C $$module $(SOURCES)); \
		if [ "$$alone" = "$$together" ]; then echo "$$module compiles the same source without the workspace."; \
		else echo "go list -export $$module"; GOWORK=off go -C $$module list -export ./... >/dev/null; fi; \
	done

# The modules outside go.work, and the alerts.
test-outside: $(REPORT)
	@if command -v promtool >/dev/null; then promtool test rules deploy/prometheus/alerts_test.yaml; \
	else sh tools/phase.sh --left-out "the alerts' tests: they need promtool (Debian's package prometheus)."; fi
	@cd tools && GOWORK=off $(REPORT) $(GO_TEST) ./layout/... ./scripts/... ./testreport/...
	@cd deploy/check && GOWORK=off $(REPORT) $(GO_TEST) ./...
	@cd deploy/dist && GOWORK=off $(REPORT) $(GO_TEST) ./...
	@cd bench/oracle && GOWORK=off $(REPORT) $(GO_TEST) ./...

test-short: setup $(REPORT) ## Run the quick tests only: -short, no stories
	@$(WITHPG) $(REPORT) $(GO_TEST) -short $(UNITS)

e2e: setup build-e2e $(REPORT) clients ## Run the end-to-end stories only
	@$(WITHPG) $(MAKE) --no-print-directory test-e2e

## ---- testing at length

race: setup $(REPORT) ## Run the race detector over everything that has goroutines (15 min)
	@CGO_ENABLED=1 $(WITHPG) $(REPORT) $(GO_TEST) $(AT_ONCE) -race -skip '^($(call any,$(CALM)))$$' $(RACE_LONG)

e2e-kill: setup build-e2e ## Kill parts at random under load (KILLS=140 RATE=50 SEED= TALKERS=120; RESTARTS=2 for rolling restarts instead)
	@rm -rf bin/kill
	@go run ./services/e2e/kill/e2e-kill -kills $(or $(KILLS),140) -rate $(or $(RATE),50) -talkers $(or $(TALKERS),120) -restarts $(or $(RESTARTS),0) $(if $(SEED),-seed $(SEED)) -logs bin/kill -json bin/kill.json

# The default PostgreSQL, and those of Debian's packages.
POSTGRESQLS := default $(wildcard /usr/lib/postgresql/*/bin)

e2e-pooler: setup build-e2e $(REPORT) ## The cluster's stories and half a minute of kills on each PostgreSQL here, with PgBouncer, TLS, and an owner who is no superuser
	@set -e; for bin in $(POSTGRESQLS); do \
		echo "PostgreSQL: $$bin"; if [ "$$bin" != default ]; then export SIGNALBOX_PG_BIN=$$bin; fi; \
		SIGNALBOX_E2E_POOLER=1 $(REPORT) $(GO_TEST) -p 1 -run '^Test(Cluster|PoolerRotation|Kills)$$' ./services/e2e ./services/e2e/kill; \
	done

e2e-faults: setup build-e2e $(REPORT) ## Break every link in every way, stop and wipe parts (about 10 min)
	@SIGNALBOX_E2E_FAULTS=full $(REPORT) go test -json -count=1 -timeout 40m ./services/e2e/faults

e2e-kube: build-e2e ## Install the chart on a real node, and restart, kill and upgrade it under load (LONG=1, TLS=1, FROM=v1.2.3, ARGS="-only quiet"; needs root)
	@go build -o bin/e2e-kube ./services/e2e/kube
	@rm -rf bin/kube-other && mkdir -p bin/kube-other $(if $(FROM),&& git archive $(FROM) | tar -x -C bin/kube-other)
	@$(if $(FROM),cd bin/kube-other && go build -o bin/ ./services/*/cmd/*,go build -ldflags "-X signalbox.dev/pkg/process.version=next" -o bin/kube-other/bin/ $(COMMANDS) $(HELPERS))
	@deploy/e2e/kube/build.sh $(if $(or $(LONG),$(findstring flood,$(ARGS))),&& deploy/e2e/kube/build.sh scaling) && TAG=$(if $(FROM),next,dev) deploy/e2e/kube/build.sh images bin && TAG=$(if $(FROM),dev,next) deploy/e2e/kube/build.sh images bin/kube-other/bin
	@trap 'deploy/e2e/kube/node.sh down' EXIT; deploy/e2e/kube/node.sh up && \
	deploy/e2e/kube/node.sh exec bin/e2e-kube $(if $(LONG),-long) $(if $(TLS),-tls) $(if $(FROM),-from bin/kube-other) -json bin/kube.json $(ARGS)

e2e-editing: setup build-e2e clients $(REPORT) ## Kill parts under 20 editors of one document (EDITS=100000)
	@SIGNALBOX_E2E_EDITS=$(or $(EDITS),100000) $(REPORT) go test -json -count=1 -timeout 40m -run '^TestEditing$$' ./services/e2e/editing

e2e-hostile: setup build-e2e $(REPORT) ## Let a model obey strangers: all 500 attacks (3 min)
	@SIGNALBOX_E2E_HOSTILE=full $(REPORT) $(GO_TEST) ./services/e2e/hostile

e2e-compose: setup build-e2e ## Compose with a real Docker engine: stories, kills, upgrade, backup (ARGS="--help")
	@deploy/e2e/compose/run.sh $(ARGS)

e2e-metrics: setup build-e2e $(REPORT) ## Cause a fault for each alert, and run the dashboard's queries, in a real Prometheus (8 min)
	@SIGNALBOX_E2E_METRICS=full $(REPORT) go test -json -count=1 -timeout 20m ./services/e2e/monitoring

e2e-oauth: setup ## Kill brokers while tokens expire (PROCESSES=8 WAITERS=1000 EXPIRIES=60)
	@go test -count=1 -timeout 40m -run '^TestProcesses$$' -v ./services/credential-broker/internal/oauth \
		-args -processes $(or $(PROCESSES),8) -waiters $(or $(WAITERS),1000) -expiries $(or $(EXPIRIES),60)

e2e-streams: setup build-e2e ## Streams on an overloaded machine, eight busy programs per processor (STREAMS=100000)
	@SIGNALBOX_E2E_STREAMS=$(or $(STREAMS),100000) go test -count=1 -timeout 40m -run '^TestStreams$$' -v ./services/e2e/failures

mutants: setup clients ## Plant faults in the protocols and check that the tests find each (ARGS="-only fence")
	@SIGNALBOX_SIM_SEEDS=2000 SIGNALBOX_E2E_HOSTILE=full $(WITHPG) go run ./services/e2e/mutants $(ARGS)

simulate: ## Run the protocol of runs, and the feed, through many seeds (SEEDS=100000 FIRST=1)
	@SIGNALBOX_SIM_SEEDS=$(or $(SEEDS),100000) SIGNALBOX_SIM_FIRST=$(or $(FIRST),1) \
		go test -count=1 -timeout 240m -p 1 -run TestSeeds -v ./services/agent-runner/internal/sim ./services/gateway/internal/feed

translated: ## Strip tool prefixes from generated streams that are cut anywhere (EVENTS=1000000)
	@go test -count=1 -timeout 30m -run '^TestTranslatedStreams$$' -v ./services/credential-broker/internal/proxy -args -events $(or $(EVENTS),1000000)

oracle: ## Compare the model codec with the official SDKs at length (EVENTS=1000000 for each)
	@cd bench/oracle && GOWORK=off go test -count=1 -timeout 30m -run Generated -v . -args -events $(or $(EVENTS),1000000)

conformance: clients ## Compare pkg/yjs with npm yjs at length (SEEDS=20000 FORGED=1000000)
	@SIGNALBOX_YJS_SEEDS=$(or $(SEEDS),20000) SIGNALBOX_YJS_FORGED=$(or $(FORGED),1000000) \
		go test -count=1 -timeout 60m -run 'Histories|Scripts|Forged' -v ./pkg/yjs

## ---- measuring

bench: bench-go bench-mux bench-oracle bench-peers bench-yjs bench-load ## Measure everything: about half an hour, on an idle machine

bench-go: setup ## Run the Go benchmarks (BENCH=. COUNT=1)
	@$(WITHPG) go test -run '^$$' -bench '$(or $(BENCH),.)' -count $(or $(COUNT),1) $(UNITS)

bench-load: setup build-e2e ## Put load on a running system (ARGS="ttft live idle replicas wide failover steps stops tools fairness documents", --help)
	@go run ./services/e2e/load $(ARGS)

bench-scale: setup build-e2e ## Measure what each unit of work costs, and verify predictions (docs/scale.md; ARGS=--json)
	@go run ./services/e2e/load $(ARGS) scale

bench-oracle: ## The model codec beside the official SDKs
	@cd bench/oracle && GOWORK=off go test -run '^$$' -bench . -count $(or $(COUNT),1)

bench-yjs: clients ## pkg/yjs beside npm yjs (SIGNALBOX_B4_TRACE=b4-trace.txt.gz for the well-known trace, ARGS=--json)
	@node bench/yjs/bench.mjs $(ARGS)

bench-mux: ## pkg/mux beside yamux (ARGS=--help)
	@cd bench/mux && GOWORK=off go run . $(ARGS)

bench-peers: setup ## The egress beside Bifrost (ARGS=--help)
	@cd bench/peers && GOWORK=off go run . $(ARGS)

# The npm clients that the end-to-end tests run, and the npm packages that ours are
# compared with. A stamp file marks them as installed.
CLIENTS := services/e2e/node services/e2e/yclients services/e2e/browser bench/yjs bench/tiptap
FIND_CHROMIUM := services/e2e/browser/chromium/find.mjs
.PHONY: clients
clients: $(addsuffix /node_modules/.installed,$(CLIENTS))
	@node $(FIND_CHROMIUM) --system || test "$$(uname -sm)" != 'Linux x86_64' || \
		$(MAKE) -s --no-print-directory $(dir $(FIND_CHROMIUM))node_modules/.installed || \
		echo "npm cannot install Chromium: tests that need a browser are left out." >&2

%/node_modules/.installed: %/package-lock.json
	@sh tools/need.sh node
	@echo "Installing the npm packages of $*."
	@npm ci --prefix $* --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

## ---- checking

docs: ## Write docs/settings.md, docs/metrics.md and the chart's settings from the code; tests compare them
	@go test -count=1 -run '^Test(Settings|Metrics)Reference$$' ./services/standalone/cmd/signalbox -update
	@cd deploy/check && GOWORK=off go test -count=1 -run '^TestChart(Settings|Values)$$' . -update

# The protocol as it was last generated. `make gen` refuses a change that breaks it;
# CONTRIBUTING.md says how to accept one.
BASELINE := proto/baseline.binpb

# The client's types are those of the gateway's OpenAPI document.
TYPES := node tools/openapi/node_modules/openapi-typescript/bin/cli.js services/gateway/testdata/openapi.json --output

gen: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go tools/openapi/node_modules/.installed ## Generate Go from proto/, and the client's types
	@test ! -e $(BASELINE) || $(TOOLS)/buf breaking --against $(BASELINE) || \
		{ echo "Services of the previous version would misunderstand this: see the chapter Protocol of CONTRIBUTING.md." >&2; exit 1; }
	@PATH="$(TOOLS):$$PATH" buf generate
	@$(TOOLS)/buf build --exclude-source-info -o $(BASELINE)
	@$(TYPES) $(CONSOLE)/packages/client/src/openapi.ts

gen-check: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go tools/openapi/node_modules/.installed ## Check that what is generated is up to date
	@$(TOOLS)/buf breaking --against $(BASELINE)
	@rm -rf bin/gen && mkdir -p bin/gen
	@PATH="$(TOOLS):$$PATH" buf generate -o bin/gen
	@$(TOOLS)/buf build --exclude-source-info -o bin/gen/$(BASELINE)
	@$(TYPES) bin/gen/openapi.ts >/dev/null
	@cmp bin/gen/openapi.ts $(CONSOLE)/packages/client/src/openapi.ts && \
		diff -r -x '*.proto' -x go.mod -x go.sum bin/gen/proto proto && echo "Generated code is up to date." || \
		{ echo "Generated code differs: run 'make gen' and commit the result." >&2; exit 1; }

# bench is left out: its dependencies take too long to compile.
lint: need-go ## Check style: golangci-lint, gofumpt, buf, tidy go.mod files, OpenAPI
	@$(MAKE) --no-print-directory -j 3 $(TOOLS)/buf $(TOOLS)/golangci-lint lint-openapi lint-console
	@$(TOOLS)/golangci-lint run $(MODULES)
	@cd tools && GOWORK=off $(TOOLS)/golangci-lint run -c ../.golangci.yml ./layout/... ./scripts/... ./testreport/...
	@cd deploy/check && GOWORK=off $(TOOLS)/golangci-lint run -c ../../.golangci.yml ./...
	@cd deploy/dist && GOWORK=off $(TOOLS)/golangci-lint run -c ../../.golangci.yml ./...
	@$(TOOLS)/buf lint
	@$(TOOLS)/buf format --diff --exit-code
	@set -e; for module in proto pkg services tools deploy/check deploy/dist bench/mux bench/oracle bench/peers; do GOWORK=off go -C $$module mod tidy -diff; done

# The document that the gateway serves: a test compares the two.
.PHONY: lint-openapi
lint-openapi: tools/openapi/node_modules/.installed
	@REDOCLY_SUPPRESS_UPDATE_NOTICE=true node tools/openapi/node_modules/@redocly/cli/bin/cli.js lint --config tools/openapi/redocly.yaml services/gateway/testdata/openapi.json

.PHONY: lint-console
lint-console: $(CONSOLE)/node_modules/.installed
	@cd $(CONSOLE) && npx biome check && npx tsc --noEmit

define TOOL
$$(TOOLS)/$(notdir $(1)): tools/go.mod tools/go.sum | need-go
	@echo "Building $$(@F). The first time takes a while."
	@$$(GO_TOOLS) build -o $$@ $(1)
endef
$(eval $(call TOOL,github.com/bufbuild/buf/cmd/buf))
$(eval $(call TOOL,github.com/golangci/golangci-lint/v2/cmd/golangci-lint))
$(eval $(call TOOL,google.golang.org/protobuf/cmd/protoc-gen-go))
$(eval $(call TOOL,connectrpc.com/connect/cmd/protoc-gen-connect-go))

$(TOOLS)/testreport: $(wildcard tools/testreport/*.go)
	@$(GO_TOOLS) build -o $@ ./testreport
