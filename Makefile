# What a developer types. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Asked once: the programs and the image have to agree.
ifndef VERSION
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0)
endif
IMAGE ?= ghcr.io/liqonet/liqonet-agent:$(VERSION)
LDFLAGS := -s -w -X github.com/liqonet/liqonet/pkg/version.version=$(VERSION)
# Everything is built in one way, without a C compiler, so that no package is compiled
# twice; with the race detector only what test-race has. Neither the directory nor the
# state of the repository is in a program: the same sources give the same bytes.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=%,$(shell go env GOFLAGS)) -trimpath -buildvcs=false)
TOOL := go tool -modfile=scripts/tools/go.mod
LAB := bin/lab
# Where TIMES names a file, `make test` has set it and shows the times of all tests.
GOTEST := go run ./scripts/gotest $(if $(TIMES),-times $(TIMES))
# Random choices of tests: of faults, of pairs of commands, of hostile objects. The same seed repeats them.
LIQONET_TEST_SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
export LIQONET_TEST_SEED := $(LIQONET_TEST_SEED)
# Packages whose goroutines share memory for as long as they live.
RACE := ./agent/... ./pkg/tunnel ./pkg/liveness $(addprefix ./,$(wildcard pkg/exchange))
# Packages whose tests ask the kernel. What they find is in no cache of results.
KERNEL := ./test/dataplane ./test/agents ./agent/... $(addprefix ./pkg/,firewall link nat nft notify overlay tunnel)
# Packages that read what others have written into custom resources.
READERS := ./test/schema ./agent/node ./agent/gateway
# What the commands are made of, which read them, too.
COMMANDS := ./pkg/plan $(addprefix ./pkg/,kube status engine peering diagnose cli)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/liqonetctl, bin/kubectl-liqonet and bin/liqonet-agent
	go build -ldflags '$(LDFLAGS)' -o bin/liqonetctl ./cmd/liqonetctl
	go build -ldflags '$(LDFLAGS)' -o bin/liqonet-agent ./agent
	ln -f bin/liqonetctl bin/kubectl-liqonet

.PHONY: image
image: build bin/LICENSES ## bin/liqonet-agent.tar, the agents' image, without Docker; says its digest
	go run ./scripts/image -o bin/liqonet-agent.tar -ref $(IMAGE) bin/liqonet-agent bin/LICENSES

bin/LICENSES: go.mod go.sum $(wildcard scripts/licenses/*.go) # of all that is in the programs
	@mkdir -p bin
	go run ./scripts/licenses -o $@ ./agent ./cmd/liqonetctl

.PHONY: generate
generate: ## deepcopy functions and CRDs, from pkg/api; docs/reference, from the program and the CRDs
	$(TOOL) controller-gen object crd:crdVersions=v1 paths=./pkg/api/... output:crd:dir=pkg/manifests/crds
	go run ./scripts/reference

.PHONY: packages
packages: ## install the distribution's packages that lab and tests need
	scripts/install-packages.sh

.PHONY: lab
lab: packages
	go build -o $(LAB) ./test/lab/cmd/lab

# Tests of kernel code wait for most of their time. The lab is built in that time, unless it already is.
.PHONY: lab-programs
lab-programs: lab
	$(LAB) build

.PHONY: lab-up
lab-up: lab image ## two clusters with equal ranges, images loaded; LAB_FLAGS for others
	$(LAB) up --image bin/liqonet-agent.tar $(LAB_FLAGS)

.PHONY: lab-down
lab-down: lab ## stop the lab's clusters without a trace
	$(LAB) down

.PHONY: lab-status
lab-status: lab ## show the lab's clusters
	$(LAB) status

.PHONY: recordings
recordings: lab image ## docs/images/peer.svg and others: what commands print, drawn from the real program
	trap '$(LAB) --name recordings down' EXIT; \
	$(LAB) --name recordings up --image bin/liqonet-agent.tar; \
	export KUBECONFIG=$$($(LAB) --name recordings kubeconfig) PATH=$(CURDIR)/bin:$$($(LAB) build):$$PATH; \
	record() { go run ./scripts/record -o docs/images/$$1.svg "$${@:2}"; }; \
	record peer 'kubectl liqonet peer cluster-a cluster-b' 'kubectl liqonet status'; \
	record verify 'kubectl liqonet verify cluster-a cluster-b'; \
	kubectl --context cluster-a delete clusterrolebinding liqonet-node; \
	record doctor 'kubectl liqonet doctor cluster-a cluster-b' 'kubectl liqonet doctor cluster-a cluster-b --fix'; \
	record unpeer 'kubectl liqonet unpeer cluster-a cluster-b' 'kubectl liqonet status'

.PHONY: demo
demo: lab image ## two clusters with equal ranges, peered, shown, unpeered (KEEP=1 leaves them)
	go run ./test/demo $(if $(KEEP),-keep)

.PHONY: demo-down
demo-down: lab ## stop the clusters that `make demo KEEP=1` left
	$(LAB) --name demo down

.PHONY: test
test: packages ## all that guards a change; the time of each test in the end
	@mkdir -p bin && rm -f bin/times
	@echo "LIQONET_TEST_SEED=$(LIQONET_TEST_SEED) repeats the random choices"
	@status=0; \
	run="$(MAKE) --no-print-directory TIMES=bin/times"; \
	$$run -j6 test-vm test-in-order || status=$$?; \
	go run ./scripts/gotest -stale; \
	go run ./scripts/gotest -times bin/times; \
	echo "LIQONET_TEST_SEED=$(LIQONET_TEST_SEED) repeats the random choices"; \
	exit $$status

.PHONY: test-unit
test-unit: ## tests that need neither root nor packages, in a minute
	go vet ./...
	$(GOTEST) -- -short ./...

# What test-unit has and the other parts of test have not.
.PHONY: test-others
test-others:
	go vet ./...
	$(GOTEST) -- -short ./cmd/... ./scripts/... ./test/...

.PHONY: test-race
test-race: packages ## the same, of agents and tunnels, with the race detector
	CGO_ENABLED=1 $(GOTEST) -- -short -race $(RACE)

# The first ones compile, which takes all processors. Tests of kernels and clusters measure times, and plays use what they leave.
.PHONY: test-in-order
test-in-order:
	$(MAKE) --no-print-directory test-others
	$(MAKE) --no-print-directory test-race
	$(MAKE) --no-print-directory lab-programs
	$(MAKE) --no-print-directory NICE='nice -n 5' test-plays test-measured

.PHONY: test-measured
test-measured:
	$(MAKE) --no-print-directory test-namespaces test-cli test-beliefs test-attack
	$(MAKE) --no-print-directory test-e2e

.PHONY: test-kernel
test-kernel: test-vm test-namespaces ## tests of kernel code, in network namespaces and a virtual machine (root)

# It waits most of its time, and measures nothing that a busy machine makes worse.
.PHONY: test-vm
test-vm: packages
	$(GOTEST) -- -count=1 -timeout 20m ./test/vm

.PHONY: test-namespaces
test-namespaces: packages
	$(GOTEST) -- -count=1 -timeout 20m -parallel 8 $(KERNEL)

# Memory is cheaper than processors, and plays mostly wait: four at a time. A result is kept until the package changes.
PLAY := $(GOTEST) -- -timeout 20m -parallel 4
.PHONY: test-plays
test-plays: packages ## plays of whole commands, hostile objects, alerts, and other tests of packages that do not ask the kernel
	GOGC=800 $(NICE) $(PLAY) ./pkg/peering ./test/schema ./test/monitoring $$(go list ./pkg/... | grep -vxF "$$(go list ./pkg/cli $(KERNEL))")

.PHONY: test-cli
test-cli: packages ## plays of the command line: these have a real clock, and limits of time that yielding to others exceeds
	GOGC=800 $(PLAY) ./pkg/cli

.PHONY: test-beliefs
test-beliefs: lab-programs ## what plays believe of an API server, compared with a real one (root)
	$(GOTEST) -- -count=1 -timeout 5m ./test/beliefs

.PHONY: test-attack
test-attack: lab-programs
	$(GOTEST) -- -count=1 -timeout 10m ./test/attack

.PHONY: attack
attack: lab-programs ## try what attackers could: a table, with each defence and without it; hostile objects (root)
	LIQONET_TEST_FULL=1 $(GOTEST) -- -count=1 -timeout 55m -run '^TestHostile' $(READERS) $(COMMANDS)
	LIQONET_TEST_FULL=1 $(GOTEST) -- -count=1 -timeout 10m ./test/attack

.PHONY: test-listed
test-listed: ## what continuous integration runs: make test, with no program in PATH that no package list has
	scripts/listed-path $(MAKE) test

.PHONY: test-fresh
test-fresh: export RUN ?= make demo && make test
test-fresh: ## RUN (demo and tests) in a root file system made just now (root); EMPTY=1: with empty caches
	scripts/test-fresh $(if $(EMPTY),--empty-caches) "$$RUN"

.PHONY: test-e2e
test-e2e: lab-programs image ## tests of the product on lab clusters (root)
	$(GOTEST) -v -- -count=1 -timeout 25m ./test/e2e

.PHONY: chaos
chaos: lab-programs image ## faults at random in three peered clusters under load, for CHAOS (5m); the seed is printed (root)
	$(GOTEST) -v -- -count=1 -timeout 0 ./test/e2e -run '^TestChaos$$' -chaos $(or $(CHAOS),5m)

# Parts which write docs/results/NAME.json. Faults at random, and full load, last for an hour; the others take less.
E2E_PARTS := $(addprefix test-long-,networks failures writes damages failover outages checks faults healthy services)
.PHONY: test-long
test-long: $(E2E_PARTS) test-long-chaos test-long-load test-long-lab test-long-vm test-long-plays test-long-pairs test-long-sizes test-long-race test-long-supply test-long-attack test-long-hostile test-long-fuzz bench bench-scale ## all that takes longer (root)

# The names of all results. scale stands for both of bench-scale.
PARTS := $(patsubst test-long-%,%,$(E2E_PARTS)) chaos load lab vm plays pairs sizes race supply attack hostile fuzz bench scale
.PHONY: test-long-touched
test-long-touched: ## the parts of test-long that depend on something that has changed since the commit BASE (root)
	@test -n "$(BASE)" || { echo "say since which commit: make test-long-touched BASE=COMMIT"; exit 1; }
	@parts=$$(go run ./scripts/gotest -touched $(BASE) -- $(PARTS)); echo "touched since $(BASE):" $$parts; status=0; \
	for part in $$parts; do \
		case $$part in bench) target=bench;; scale) target=bench-scale;; *) target=test-long-$$part;; esac; \
		$(MAKE) --no-print-directory $$target || status=$$?; \
	done; exit $$status

.PHONY: $(E2E_PARTS)
$(E2E_PARTS): test-long-%: lab-programs image
	go run ./scripts/gotest -v -result $* -of agent,cmd,test/lab -- -count=1 -timeout 55m ./test/e2e -part $*

.PHONY: test-long-chaos
test-long-chaos: lab-programs image
	go run ./scripts/gotest -v -result chaos -of agent,cmd,test/lab -- -count=1 -timeout 80m ./test/e2e -run '^TestChaos$$' -chaos 60m

.PHONY: test-long-load
test-long-load: lab-programs image
	go run ./scripts/gotest -v -result load -of agent,cmd,test/lab -- -count=1 -timeout 70m ./test/e2e -run '^TestPlanesThatAreBad$$/^full_load$$' -load 60m

.PHONY: test-long-lab
test-long-lab: lab-programs
	go run ./scripts/gotest -v -result lab -- -count=1 -timeout 55m ./test/lab/...

.PHONY: test-long-vm
test-long-vm: packages
	LIQONET_TEST_BACKENDS=all go run ./scripts/gotest -v -result vm -of pkg,test/dataplane -- -count=1 -timeout 55m ./test/vm

.PHONY: test-long-plays
test-long-plays:
	LIQONET_TEST_FULL=1 go run ./scripts/gotest -result plays -- -count=1 -timeout 55m -skip '^Test(Hostile|CommandsAreSerial$$)' \
		./pkg/peering ./pkg/engine ./pkg/diagnose ./pkg/cli

# Every pair of commands, the first one suspended before each of its writes. It keeps two processors busy for about an hour.
.PHONY: test-long-pairs
test-long-pairs:
	LIQONET_TEST_FULL=1 GOGC=400 go run ./scripts/gotest -result pairs -- -count=1 -timeout 90m -run '^TestCommandsAreSerial$$' ./pkg/peering

.PHONY: test-long-sizes
test-long-sizes: packages
	LIQONET_TEST_FULL=1 go run ./scripts/gotest -v -result sizes -of agent -- -count=1 -timeout 55m -p 1 -run "TestGatewayOfManyNodes|TestNodeOfLargePeerings|TestFailover|TestTCPThatDoesNotPass|TestCrowdDetectsADeadGateway|TestFloodFromManyPorts|TestGarbageDelaysNothing" \
		./test/agents ./pkg/liveness ./pkg/tunnel

.PHONY: test-long-race
test-long-race: packages
	CGO_ENABLED=1 go run ./scripts/gotest -result race -- -short -race -timeout 55m ./...

.PHONY: test-long-supply
test-long-supply:
	go run ./scripts/gotest -v -result supply -of agent,cmd,pkg,scripts,Makefile,go.mod,go.sum -- -count=1 -timeout 55m ./test/supply

.PHONY: test-long-attack test-long-hostile
test-long-attack: lab-programs
	LIQONET_TEST_FULL=1 go run ./scripts/gotest -result attack -of agent -- \
		-count=1 -timeout 55m -run '^Test(Attack|Hostile)' $(READERS) ./test/attack
test-long-hostile:
	LIQONET_TEST_FULL=1 GOGC=400 go run ./scripts/gotest -result hostile -- \
		-count=1 -timeout 55m -run '^TestHostile' $(COMMANDS)

# Each fuzz target for a minute, or for LIQONET_TEST_FUZZTIME.
.PHONY: test-long-fuzz
test-long-fuzz:
	LIQONET_TEST_FULL=1 go run ./scripts/gotest -v -result fuzz -of pkg,agent -- -count=1 -timeout 80m ./test/fuzz

# All but BenchmarkScale, which bench-scale has.
.PHONY: bench
bench: lab-programs image ## speed, as ratios against a baseline of the same run
	go run ./scripts/gotest -v -result bench -of agent,cmd,test/lab -- -p 1 -count=1 -timeout 55m -run '^$$' -bench '^Benchmark([^S]|S[^c])' -benchtime 1x ./test/bench/... ./test/e2e/... ./pkg/cli ./test/agents

.PHONY: bench-scale
bench-scale: lab-programs image ## what agents and commands cost with up to 5,000 nodes, 100,000 pods and 250 peerings, and how that grows (root)
	go run ./scripts/gotest -v -result scale -of agent -- -count=1 -timeout 30m -run '^$$' -bench Scale -benchtime 1x ./test/agents
	go run ./scripts/gotest -v -result scalelab -of agent,cmd,test/lab -- -count=1 -timeout 80m -run '^$$' -bench Scale -benchtime 1x ./test/scale

.PHONY: lint
lint: ## static analysis, formatting, comments of exported names, length of sentences, shape of packages
	go vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) errcheck -ignoretests -exclude scripts/errcheck.txt ./...
	$(TOOL) ineffassign ./...
	go run ./scripts/lint
	go run ./scripts/lint -shape
	@unformatted=$$($(TOOL) gofumpt -l .); [[ -z $$unformatted ]] || { echo "not formatted (make fmt):" $$unformatted >&2; exit 1; }

# Where no network leads to the public database, VULNDB is another one:
# https://go.dev/security/vuln/database says what it consists of.
VULNDB ?= https://vuln.go.dev
PACKAGES ?= ./...
.PHONY: vuln
vuln: ## known vulnerabilities in what the programs call; VULNDB=file:///DIRECTORY for a copy of the database
	@$(TOOL) govulncheck -db $(VULNDB) $(PACKAGES) || { status=$$?; [[ $$status == 3 ]] || \
		echo "No findings, as the check failed. Without a network, VULNDB=file:///DIRECTORY names a copy of the database." >&2; exit $$status; }

.PHONY: fmt
fmt: ## format all Go code
	$(TOOL) gofumpt -w .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
