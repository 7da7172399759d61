# `make dev`, `make test`, `make lint`, `make chaos`, `make sim`, `make bench`: each sets up what it needs, and at once when that is there already.
# `CARGO_TARGET_DIR` is respected. Everything builds under the one dev profile, so that RocksDB compiles once.

CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
SETUP := $(TARGET)/setup
NODE_MODULES := tests/clients/node/node_modules/.package-lock.json tests/clients/conformance/node_modules/.package-lock.json \
	tests/clients/console/node_modules/.package-lock.json
export QUORATE ?= $(TARGET)/debug/quorate

.PHONY: help dev build test test-rust test-clients test-system behaviours lint chaos chaos-quick chaos-mutants rolling sim bench deb setup setup-test clean-setup
.DEFAULT_GOAL := help

help:
	@echo 'make dev           three nodes and a gateway on this machine'
	@echo 'make test          all tests: Rust, official MCP clients, whole deployments'
	@echo 'make test-rust     the Rust tests alone; also test-clients, test-system'
	@echo 'make behaviours    which test proves which promised behaviour of which tool; fails while one has none (GAPS=--gaps shows those)'
	@echo 'make lint          formatting and lints'
	@echo 'make chaos-quick   a cluster hurt on purpose, in every way, four minutes; CHAOS="--nemesis kill-leader" passes options'
	@echo 'make chaos         200 simulated clusters, five minutes of each fault alone, and all together: two hours and a half (docs/chaos.md);'
	@echo '                   CHAOS="--jobs 4 --seconds 60" passes options'
	@echo 'make rolling       200 random restarts of nodes under load, then equal hashes; RESTARTS=20 for fewer'
	@echo 'make chaos-mutants whether the simulation finds bugs that are put into a copy of the product; MUTANTS=--table as in docs/chaos.md'
	@echo 'make bench         Quorate and etcd side by side, five to eight minutes; BENCH="--seconds 10" passes options'
	@echo 'make sim           simulated clusters under faults; SIM="--seeds 100" passes options, SIM=--plants tests the checks'
	@echo 'make deb           the Debian package, with cargo-deb; a release build'
	@echo 'make setup         only what a build needs; setup-test: what the tests need'

dev: build
	$(QUORATE) dev

build: setup
	$(CARGO) build --workspace

# ------------------------------------------------------------------ tests

# One runner for all, so that every suite runs even if one before it fails, and the last line is the sum.
test: setup setup-test
	python3 tests/run.py behaviours rust clients system

test-rust: setup
	python3 tests/run.py rust

test-clients: setup-test build
	python3 tests/run.py clients

test-system: setup-test build
	python3 tests/run.py system

# Needs no build: it reads the lists and the sources. A part of `make test`.
behaviours:
	@python3 tests/behaviours/table.py $(GAPS)

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# ------------------------------------------------------------------ chaos

chaos: build
	$(TARGET)/debug/quorate-chaos campaign --out $(TARGET)/chaos $(CHAOS)

# One run, with every fault once or twice.
chaos-quick: build
	@mkdir -p $(TARGET)/chaos
	$(TARGET)/debug/quorate-chaos run --seconds 200 --report $(TARGET)/chaos/report.html --history $(TARGET)/chaos/history.jsonl $(CHAOS)

# Nodes that restart as they do in years of upgrades and crashes.
rolling: build
	RESTARTS=$(or $(RESTARTS),200) python3 tests/system/test_rolling_restarts.py

# Whether it would find a bug: some are put into a copy of the product, and each has to be named.
chaos-mutants: setup
	python3 chaos-tests/mutants.py $(MUTANTS)

# ------------------------------------------------------------------ bench

bench: setup $(SETUP)/bench
	$(CARGO) build --workspace
	$(TARGET)/debug/quorate-bench --etcd $(SETUP)/etcd/usr/bin/etcd $(BENCH)

# ------------------------------------------------------------------ simulation

sim: setup
	$(CARGO) build --workspace
	$(TARGET)/debug/quorate-chaos sim $(SIM)

# ------------------------------------------------------------------ package

deb: setup
	$(CARGO) build --release --package quorate
	deploy/debian/files $(TARGET)/release/quorate $(TARGET)/release/shell
	$(CARGO) deb --package quorate --no-build

# ------------------------------------------------------------------ setup

setup: $(SETUP)/build

setup-test: $(SETUP)/test $(SETUP)/python-1/installed $(SETUP)/python-2/installed \
	$(SETUP)/python-http/installed $(NODE_MODULES)

# Forgets what was checked; nothing is uninstalled.
clean-setup:
	rm -rf $(SETUP)

$(SETUP)/%: .ci/setup
	.ci/setup $* $(SETUP)
	@touch $@

# Both major versions of the official Python SDK, each in its own environment.
$(SETUP)/python-%/installed: tests/clients/python/requirements-%.txt | $(SETUP)/test
	rm -rf $(@D)
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# What asks the HTTP API everything that its document allows, and what it does not.
$(SETUP)/python-http/installed: tests/clients/http/requirements.txt | $(SETUP)/test
	rm -rf $(@D)
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The SDK, the conformance suite with the Node.js that it needs, and what drives a browser.
tests/clients/%/node_modules/.package-lock.json: tests/clients/%/package-lock.json tests/clients/%/package.json | $(SETUP)/test
	cd tests/clients/$* && npm ci --silent
	@touch $@
