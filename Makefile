# Every target works from a fresh clone with Go, a JDK 17+ and Maven. `make help` lists them.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# The servers that tests and the demo need. With DATABASE_URL and ELASTIC_URL set it
# uses those; otherwise it fetches, starts and stops its own.
LAB   := go run ./cmd/weftlab
STACK := $(LAB) stack --quick --

# The Elasticsearch client is a large package to analyse: unlimited, the linter takes 4 GB.
LINT := GOGC=40 GOMEMLIMIT=1300MiB go tool -modfile=tools/go.mod golangci-lint

# Most tests wait for a server or a timer, so more of them run than there are cores: four of each
# of two packages, and fewer of those that start servers of their own. lint vets.
# Under the race detector collections take a third of a test's time where memory is not scarce.
# A quarter of the linker's time is for a debugger.
TEST := env GOGC=400 GORACE=atexit_sleep_ms=100 go test -vet=off -ldflags=-w -p 2

# The packages that drill weft as a whole, follow what the docs say, or serve tests. The others test the product.
WORKSHOP := /(cmd/weftlab|examples|internal/(lab|docstest|testenv|tlstest))(/|$$)

# The one reads the files of the house and runs nothing of weft, the other decides in one goroutine: the race detector has
# nothing to find in them, and would take four times as long. test-long has it for them, and test-model more worlds.
PLAIN := /(internal/archtest|consumer/schedule)$$

# They begin first: the last packages would run alone otherwise.
LONGEST := ./internal/daemon ./cmd/weft ./consumer

# The race detector needs a C compiler; without one go says CGO_ENABLED=0.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

TESTFLAGS ?=
FUZZTIME  ?= 10s
DRILLS    ?= all
SCENARIOS ?= distinct hot mixed trickle
BASE      ?= $(shell git rev-parse -q --verify origin/main || git rev-parse -q --verify HEAD~1)

.DEFAULT_GOAL := help

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {print "\n" substr($$0, 5) ":"} /^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build and test

.PHONY: build
build: ## Build bin/weft and bin/weftlab
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/weft ./cmd/weftlab

.PHONY: test-fast
test-fast: ## Run the product's tests that need no server, in under a minute
	env -u DATABASE_URL -u ELASTIC_URL go test -short $(TESTFLAGS) $$(go list ./... | grep -vE '/(cmd/weftlab|internal/(lab|testenv|tlstest))(/|$$)')

.PHONY: test
test: race-note ## Run the product's tests against a real PostgreSQL and Elasticsearch
	$(TEST) -short $(TESTFLAGS) $$(go list ./... | grep -E '$(PLAIN)')
	$(STACK) $(TEST) $(RACE) -parallel 4 -timeout 20m $(TESTFLAGS) $(LONGEST) $$(go list ./... | grep -vE '$(WORKSHOP)|$(PLAIN)')

.PHONY: test-workshop
test-workshop: race-note ## Run the tests of drills, chaos, failover, demo, bench, examples and test servers, and of what the docs say
	$(STACK) $(TEST) $(RACE) -parallel 3 -timeout 20m $(TESTFLAGS) $$(go list ./... | grep -E '$(WORKSHOP)')

.PHONY: test-long
test-long: race-note ## Run all tests with the volumes of the nightly run
	WEFT_TEST_LONG=1 $(STACK) $(TEST) $(RACE) -parallel 3 -timeout 40m $(TESTFLAGS) ./...

.PHONY: lint
lint: ## Check format, code and module files
	$(LINT) run ./...
	go mod tidy -diff

.PHONY: fmt
fmt: ## Format the code
	$(LINT) fmt ./...

.PHONY: cover
cover: ## Write cover.html: what the tests reach, over all packages
	$(STACK) go test -coverpkg=./... -coverprofile=cover.out ./...
	go tool cover -html=cover.out -o cover.html
	@go tool cover -func=cover.out | tail -n 1

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) $(STACK) sh -ec ' \
	grep -roE --include="*_test.go" "^func Fuzz[A-Za-z0-9_]+" . | sed "s/func //" | sort | \
	while IFS=: read -r file name; do \
		echo "$$name in $$(dirname "$$file")"; \
		go test -run "^$$" -fuzz "^$$name$$" -fuzztime "$$FUZZTIME" "$$(dirname "$$file")" </dev/null; \
	done'

.PHONY: test-model
test-model: ## Drive the scheduler through two million random steps
	go test -run TestSchedulerKeepsOrderAndLosesNothing $(TESTFLAGS) ./consumer/schedule

.PHONY: test-browser
test-browser: ## Use the operator's page in Chromium, as an operator does; TESTFLAGS=-update takes the pictures of docs
	@command -v chromium >/dev/null || { echo "chromium is missing: install it (Debian: apt-get install chromium)" >&2; exit 1; }
	$(STACK) go test -vet=off -tags browser -count=1 -timeout 5m ./internal/browsertest $(TESTFLAGS)

.PHONY: test-pgbouncer
test-pgbouncer: race-note ## Run the tests that need PgBouncer
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin"; export PATH; \
	command -v pgbouncer >/dev/null || \
		{ echo "pgbouncer is missing: install it (Debian, Ubuntu: apt-get install pgbouncer)" >&2; exit 1; }; \
	pkgs=$$(grep -rlE --include='*_test.go' '^//go:build pgbouncer$$' . | xargs -r -n1 dirname | sort -u); \
	test -n "$$pkgs" || { echo "no test carries the build tag pgbouncer" >&2; exit 1; }; \
	$(STACK) go test $(RACE) -tags pgbouncer -run PgBouncer $(TESTFLAGS) $$pkgs

.PHONY: test-python
test-python: build ## Check and test the Python client, and build its wheel into dist/
	@python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "Python 3.10 or newer with venv is missing: install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(STACK) clients/python/check dist

.PHONY: test-observability
test-observability: race-note ## Run the tests that need Prometheus, and build Jaeger for them
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || \
		{ echo "prometheus is missing: install it (Debian, Ubuntu: apt-get install --no-install-recommends prometheus)" >&2; exit 1; }; \
	files=$$(grep -rlE --include='*_test.go' '^//go:build observability$$' .); \
	test -n "$$files" || { echo "no test carries the build tag observability" >&2; exit 1; }; \
	pkgs=$$(dirname $$files | sort -u); \
	tests=$$(sed -nE 's/^func (Test[A-Za-z0-9_]+)\(t \*testing\.T\).*/\1/p' $$files | paste -sd'|' -); \
	$(STACK) go test $(RACE) -tags observability -run "^($$tests)$$" $(TESTFLAGS) $$pkgs

.PHONY: test-homes
test-homes: ## Check the files for containers with the code of those who read them
	cd tools/homes && $(subst tools/go.mod,../go.mod,$(LINT)) run ./...
	cd tools/homes && go mod tidy -diff && go test $(TESTFLAGS) ./...

.PHONY: test-supply
test-supply: ## Check the bill of materials, and the search for known vulnerabilities
	cd tools/supply && $(subst tools/go.mod,../go.mod,$(LINT)) run ./...
	cd tools/supply && go mod tidy -diff && go test $(TESTFLAGS) ./...

.PHONY: test-peers
test-peers: ## Check what `weftlab peers` runs; the peers themselves are not run
	cd tools/peers && $(subst tools/go.mod,../go.mod,$(LINT)) run ./...
	cd tools/peers && go mod tidy -diff && go test $(TESTFLAGS) ./...

.PHONY: test-kafka
test-kafka: ## Follow docs/kafka.md: a broker, and Debezium beside weft on one outbox
	mvn -q -B -f tools/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=target/lib
	$(LAB) stack --quick --logical -- go test -tags kafka -count=1 -timeout 10m $(TESTFLAGS) ./internal/kafkatest

.PHONY: test-container
test-container: race-note ## Build the image, and run a pair of it with podman
	@for tool in podman runc busybox; do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || \
		{ echo "$$tool is missing: apt-get install --no-install-recommends podman runc busybox-static" >&2; exit 1; }; done
	$(STACK) go test $(RACE) -tags container -timeout 30m $(TESTFLAGS) ./deploy/container/...

.PHONY: test-compose
test-compose: ## Start deploy/compose with podman-compose, on images that are made here (as root)
	@for tool in podman-compose podman runc busybox debootstrap; do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || \
		{ echo "$$tool is missing: .ci/nightly compose installs it" >&2; exit 1; }; done
	PATH="$$PATH:/usr/sbin" go test -tags compose -count=1 -timeout 50m $(TESTFLAGS) ./deploy/compose

.PHONY: test-kubelet
test-kubelet: ## Run deploy/k8s on a node with a kubelet, under load (as root); builds Kubernetes, which takes minutes
	@for tool in podman runc busybox containerd ctr etcd ip; do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || \
		{ echo "$$tool is missing: .ci/nightly kubelet installs it" >&2; exit 1; }; done
	CGO_ENABLED=0 go -C tools/homes build -trimpath -o $(CURDIR)/bin/kubernetes/ \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$(go -C tools/homes list -m -f '{{.Version}}' k8s.io/kubernetes)" tool
	PATH="$$PATH:/usr/sbin" $(STACK) go test -tags kubelet -count=1 -timeout 45m $(TESTFLAGS) ./deploy/k8s

.PHONY: test-deb
test-deb: ## Build the package twice, and check it and its units with Debian's tools
	@for tool in lintian systemd-analyze dpkg-deb man; do command -v $$tool >/dev/null || \
		{ echo "$$tool is missing: apt-get install lintian systemd dpkg man-db" >&2; exit 1; }; done
	go test -tags debian $(TESTFLAGS) ./deploy/... ./internal/lab/nspawn

.PHONY: test-release
test-release: ## Build a release twice, the second time from nothing, and compare the two
	go test -tags release -timeout 40m $(TESTFLAGS) ./deploy

##@ See it work

.PHONY: demo
demo: ## Watch two instances carry the documentation of Go's standard library
	$(LAB) demo $(DEMOFLAGS)

.PHONY: drills
drills: ## Trigger every failure of the training ground, and judge the evidence of each
	$(LAB) run $(DRILLS) $(DRILLFLAGS)
	$(LAB) verify $(DRILLS)

.PHONY: drills-fast
drills-fast: ## Trigger and judge the few that every change has to pass
	$(MAKE) drills DRILLS=fast

.PHONY: chaos
chaos: ## Break everything around a pair for three minutes, and check that nothing is lost
	$(LAB) chaos $(CHAOSFLAGS)

.PHONY: failover
failover: ## Stop PostgreSQL hard and promote its replica, five times under load
	$(LAB) failover $(FAILOVERFLAGS)

.PHONY: patroni
patroni: ## Let Patroni fail PostgreSQL over under load, by both ways to the primary
	go test -tags patroni -run Patroni $(TESTFLAGS) ./internal/lab/faults
	$(LAB) failover --patroni --sync $(FAILOVERFLAGS)
	$(LAB) failover --patroni --async $(FAILOVERFLAGS)
	$(LAB) failover --patroni --haproxy --sync $(FAILOVERFLAGS)
	$(LAB) failover --patroni --haproxy --async $(FAILOVERFLAGS)

.PHONY: soak
soak: ## Chaos for half an hour, failovers of PostgreSQL, and a comparison of speed
	$(LAB) chaos --duration 30m $(CHAOSFLAGS)
	$(LAB) failover --times 5 --sync
	$(LAB) failover --times 5 --async
	$(MAKE) bench-guard


.PHONY: drill-systemd
drill-systemd: ## Drill the package under systemd in two machines, from installation to removal (as root)
	$(LAB) systemd $(SYSTEMDFLAGS)

.PHONY: bench
bench: ## Measure weft beside a bare bulk loader (SCENARIOS=distinct ...)
	$(LAB) bench $(SCENARIOS) $(BENCHFLAGS)

.PHONY: bench-guard
bench-guard: ## Compare this tree with the merge base, on main with the commit before; fails below 0.9 of its rate
	base=$$(git merge-base HEAD $(BASE)) && { [ "$$base" != "$$(git rev-parse HEAD)" ] || base=$$(git rev-parse --verify HEAD~1); } && \
	$(LAB) bench distinct --against "$$base" --least 0.9 --rounds 5 --events 50000 $(BENCHFLAGS)

##@ Maintain

.PHONY: stack-up
stack-up: ## Start PostgreSQL and Elasticsearch and leave them running
	@$(LAB) stack up

.PHONY: stack-down
stack-down: ## Stop what stack-up started
	$(LAB) stack down

.PHONY: docs
docs: ## Bring the generated parts of docs and of the package up to date
	go run ./cmd/weft man --markdown >docs/cli.md
	go test ./internal/archtest -run 'TestConfigurationPage|TestFrozenNames' -update
	go test ./internal/config -run TestTemplate -update
	go test ./internal/lab/trail -run TestVocabularyIsWritten -update

.PHONY: deb
deb: ## Build the Debian package of this commit into dist/
	deploy/deb/build dist

.PHONY: release
release: ## Build the release of the tagged commit into dist/: packages, tarballs, checksums
	deploy/release/build dist

.PHONY: vulnerabilities
vulnerabilities: ## Compare every module with the known vulnerabilities (GOVULNDB: another database)
	go -C tools/supply tool vulnerabilities

.PHONY: clean
clean: ## Remove what was built, and the coverage; weftlab clean removes the evidence of drills
	rm -rf bin dist cover.out cover.html

.PHONY: race-note
race-note:
	@$(if $(RACE),:,echo "no C compiler: the tests run without the race detector (install gcc to have it)" >&2)
