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
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)'
TOOL := go tool -modfile=scripts/tools/go.mod
LAB := bin/lab

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/liqonetctl, bin/kubectl-liqonet and bin/liqonet-agent
	$(GOBUILD) -o bin/liqonetctl ./cmd/liqonetctl
	$(GOBUILD) -o bin/liqonet-agent ./agent
	ln -f bin/liqonetctl bin/kubectl-liqonet

.PHONY: image
image: build ## bin/liqonet-agent.tar, the agents' image, without Docker
	go run ./scripts/image -o bin/liqonet-agent.tar -ref $(IMAGE) bin/liqonet-agent

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

.PHONY: lab-up
lab-up: lab image ## two clusters with equal ranges, images loaded; LAB_FLAGS for others
	$(LAB) up --image bin/liqonet-agent.tar $(LAB_FLAGS)

.PHONY: lab-down
lab-down: lab ## stop the lab's clusters without a trace
	$(LAB) down

.PHONY: lab-status
lab-status: lab ## show the lab's clusters
	$(LAB) status

.PHONY: demo
demo: lab image ## two clusters with equal ranges, peered, shown, unpeered (KEEP=1 leaves them)
	go run ./test/demo $(if $(KEEP),-keep)

.PHONY: demo-down
demo-down: lab ## stop the clusters that `make demo KEEP=1` left
	$(LAB) --name demo down

.PHONY: test
test: packages test-unit test-kernel test-e2e ## all that guards a change
	@go run ./scripts/gotest -stale

.PHONY: test-unit
test-unit: ## tests without root, under two minutes
	go vet ./...
	go test -short -race ./...

.PHONY: test-kernel
test-kernel: packages ## tests of kernel code, in network namespaces (root)
	# The cache of results does not know of the programs that the virtual machine's test builds.
	# That test waits most of its time: the others pass meanwhile.
	go test -count=1 -timeout 20m ./test/vm/... ./test/dataplane/... ./pkg/...

.PHONY: test-e2e
test-e2e: lab image ## tests of the product on lab clusters (root)
	go run ./scripts/gotest -v -- -count=1 -timeout 20m ./test/e2e

# Parts of less than an hour each, which write docs/results/NAME.json.
.PHONY: test-long
test-long: test-long-networks test-long-failures test-long-damages test-long-lab bench ## all that takes longer (root)

.PHONY: test-long-networks test-long-failures test-long-damages
test-long-networks test-long-failures test-long-damages: test-long-%: lab image
	go run ./scripts/gotest -v -result $* -of agent,cmd,pkg,test/e2e,test/lab -- -count=1 -timeout 55m ./test/e2e -part $*

.PHONY: test-long-lab
test-long-lab: lab
	go run ./scripts/gotest -v -result lab -of test/lab -- -count=1 -timeout 55m ./test/lab/...

.PHONY: bench
bench: lab image ## speed, as ratios against a baseline of the same run
	go run ./scripts/gotest -v -result bench -of agent,cmd,pkg,test/bench -- -p 1 -count=1 -timeout 55m -run '^$$' -bench . -benchtime 1x ./test/bench/... ./test/e2e/...

.PHONY: lint
lint: ## static analysis, formatting, comments of exported names, length of sentences
	go vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) errcheck -ignoretests -exclude scripts/errcheck.txt ./...
	$(TOOL) ineffassign ./...
	go run ./scripts/lint
	@unformatted=$$($(TOOL) gofumpt -l .); [[ -z $$unformatted ]] || { echo "not formatted (make fmt):" $$unformatted >&2; exit 1; }

.PHONY: fmt
fmt: ## format all Go code
	$(TOOL) gofumpt -w .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
