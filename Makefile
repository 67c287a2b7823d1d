# What each target does and how long it takes: docs/testing.md.

SHELL := /bin/bash
GO ?= go
CHECK := $(GO) run ./internal/testenv/check

.PHONY: check setup build lib wheel test bench bench-micro bench-check soak fuzz clean

check: setup ## everything that has to pass, with a budget per suite
	@$(CHECK)

setup: ## install the programs that tests need, or say which are missing
	@scripts/setup

build: ## the static command, in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/tideway ./cmd/tideway

lib: ## the C library, its headers and its pkg-config file, in bin/lib/
	@scripts/lib bin/lib

wheel: ## the Python packages with the C library inside, in bin/
	@scripts/wheel bin

test: ## the quick tests, without the race detector
	$(GO) test -short ./...

bench: build ## the tables of docs/performance.md: ours and the limits in turns, about five minutes
	$(GO) build -o bin/measure ./internal/testenv/bench
	bin/measure -write

bench-micro: ## the benchmarks of packages, summed up by benchstat
	@mkdir -p bin
	$(GO) test -run '^$$' -bench . -benchmem -count 6 -benchtime 200ms ./... | tee bin/micro.txt
	$(GO) tool benchstat bin/micro.txt

bench-check: ## the speed gates: ratios against a yardstick of the same minute
	@TIDEWAY_SPEED=1 scripts/named '^TestSpeed' -timeout 60m

soak: ## the long runs; the last result stands in docs/testing.md
	@TIDEWAY_SOAK=1 scripts/named '^TestSoak' -timeout 12h

fuzz: ## every fuzz target for FUZZTIME (1m) each
	@scripts/fuzz

clean:
	rm -rf bin
