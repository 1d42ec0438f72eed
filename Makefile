# Every verb runs alone; `make` lists them. `make test` is what CI runs, `make demo` shows the product.

.DEFAULT_GOAL := help
.PHONY: help setup fmt fmt-check lint docs build unit check-configs test test-rdma test-rdma-long simulate lines planted small-worlds grid fuzz restarts promotions chaos soak witnesses
.PHONY: page-test counts counts-write microbench demo bench bench-peers install-c deny clean
.PHONY: package package-test package-same image sbom

SHELL := /bin/bash
CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
BIN = $(TARGET)/release
SUB = @TICKCAST_SET_UP=1 $(MAKE) --no-print-directory
# CI sets LOCKED=--locked, so that a Cargo.lock that was not committed with its change is an error.
LOCKED ?=
export CARGO_TERM_PROGRESS_WHEN ?= never
# A verb builds its programs when it runs alone. As a stage of `make test`, it uses the stages' build.
BUILD_SERVICE ?= $(CARGO) build --release $(LOCKED) -p tickcast -p tickcast-publisher \
	$$(.ci/features tickcast tickcast-publisher)
BUILD_LAB ?= $(CARGO) build --release $(LOCKED) -p tickcast-lab -p tickcast-publisher \
	$$(.ci/features tickcast-lab tickcast-publisher)
# With the same options as the workspace's own tests, so nothing is built twice. Runs the corpus too.
BUILD_FUZZ ?= $(CARGO) test --workspace $$(.ci/features) $(LOCKED) --test corpus
# The simulator's planted bugs are behind a run-time switch, so one build serves both with and without them.
BUILD_BINS ?= $(CARGO) build --release $(LOCKED) -p tickcast-sim --features planted-bugs --bins
# Seed of random proofs. CI sets it to the day.
DAY ?= 1
export DAY

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  e.g. make demo DEMO_ARGS='--drop 0.05 --seed 7'"

setup: ## install what this machine lacks (quick when nothing does)
	@.ci/setup

fmt: setup ## format the code
	$(CARGO) fmt --all

fmt-check: setup ## fail if the code is not formatted
	$(CARGO) fmt --all --check

lint: setup ## clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets $(LOCKED) $$(.ci/features) -- -D warnings

docs: setup ## build the API documents, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps $(LOCKED) $$(.ci/features)

build: setup ## build all programs and libraries, optimised
	$(CARGO) build --release $(LOCKED) -p tickcast -p tickcast-publisher -p tickcast-c -p tickcast-lab \
		$$(.ci/features tickcast tickcast-publisher tickcast-lab)
	$(BUILD_BINS)
	$(BUILD_COUNTS)

.PHONY: build-sim build-tests
build-sim: setup
	$(BUILD_BINS)

build-tests: setup
	$(CARGO) test --workspace $$(.ci/features) $(LOCKED) --no-run

# Most tests mostly wait, so more of them run at a time than there are cores.
unit: setup ## run all tests; make unit TEST_ARGS='-p tickcast-reliability gaps'
	$(if $(findstring -p ,$(TEST_ARGS)),,TICKCAST_BUILT=1) \
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} $(CARGO) test \
		$(if $(findstring -p ,$(TEST_ARGS)),,--workspace $$(.ci/features)) $(LOCKED) $(TEST_ARGS)

check-configs: setup ## check the example configs of the publisher with the service itself
	@echo "configs that name RDMA devices are checked in the lab, where there is one (make test-rdma)"
	$(BUILD_SERVICE)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" && bin='$(abspath $(BIN))' && \
	"$$bin/tickcast" simulate market.pcap --messages 2000 && \
	sed "s|/var/lib/tickcast|$$folder/state|" '$(CURDIR)/configs/package/publisher.json' >package.json && \
	"$$bin/tickcast-publisher" --config package.json --check && \
	n=0; for f in $$(grep -ls '"\$$schema": *"publisher.schema.json"' '$(CURDIR)'/configs/*.json | xargs grep -L '"verbs"'); do \
		echo "checking $$f"; "$$bin/tickcast-publisher" --config $$f --check || exit 1; n=$$((n + 1)); \
	done; echo "$$n configs are sound"

test: setup ## all of the above except fmt, and the proofs below, as stages
	$(SUB) --silent stages

# Each day has seeds of its own: a thousand of the protocol, ten thousand of the lines.
simulate: SEEDS ?= $(DAY)000..$(DAY)999
lines: SEEDS ?= $(DAY)0000..$(DAY)9999
simulate: setup ## the protocol in virtual time; make simulate SEEDS=0..200000
	$(BUILD_BINS)
	$(BIN)/simulate --seeds $(SEEDS) $(SIMULATE_ARGS)

lines: setup ## the lines of a source in virtual time; make lines SEEDS=0..100000
	$(BUILD_BINS)
	$(BIN)/lines --seeds $(SEEDS)

planted: setup ## check that the simulators find every planted bug
	$(BUILD_BINS)
	$(BIN)/simulate --planted all
	$(BIN)/lines --planted
	$(BIN)/exhaustive --planted

small-worlds: setup ## every interleaving of small worlds; SMALL_WORLDS_ARGS=--large for more
	$(BUILD_BINS)
	$(BIN)/exhaustive $(SMALL_WORLDS_ARGS)

grid: setup ## compare loss times receivers with the committed table; GRID_ARGS=--write renews it
	$(BUILD_BINS)
	$(BIN)/grid $(GRID_ARGS)

SECONDS_EACH ?= 10
export SECONDS_EACH TARGETS SEED FUZZ
fuzz: setup ## fuzz every kind of external input; make fuzz SECONDS_EACH=600 TARGETS='itch config' SEED=7
	$(BUILD_FUZZ)
	@LOCKED="$(LOCKED)" CARGO="$(CARGO)" tests/fuzz/run

# The counted build is always the same, without features or flags of this machine.
BUILD_COUNTS ?= CARGO_INCREMENTAL=0 RUSTFLAGS= $(CARGO) build --release $(LOCKED) -p tickcast-stages
counts: setup ## compare instructions of each stage with the committed table; COUNTS_ARGS=--functions lists functions
	$(BUILD_COUNTS)
	$(BIN)/counts $(COUNTS_ARGS)

export REASON
counts-write: setup ## renew that table; make counts-write REASON='why a stage may take more'
	$(BUILD_COUNTS)
	$(BIN)/counts --write --reason "$$REASON" $(COUNTS_ARGS)

microbench: setup ## time each stage; make microbench STAGES=window
	$(CARGO) bench $(LOCKED) -p tickcast-stages --bench stages -- $(STAGES)

test-rdma: setup ## verbs on Soft-RoCE in a small virtual machine; SUITES='verbs' selects suites
	$(BUILD_SERVICE) --features tickcast-publisher/testing
	@LOCKED="$(LOCKED)" BIN="$(BIN)" tests/lab/vm/test $(SUITES)

ROUNDS ?= 20
restarts: setup ## a killed and restarted publisher continues its epoch; make restarts ROUNDS=100
	$(CARGO) build --release $(LOCKED) --workspace --bins
	TICKCAST_RESTARTS=$(ROUNDS) $(CARGO) test --release $(LOCKED) -p tickcast-tests --test system restart::restarts -- --nocapture --test-threads=1

MINUTES ?= 3
SEED ?= 1
CHAOS_ARGS ?=
chaos: setup ## kill, cut off and starve processes in namespaces: nothing is lost silently; make chaos MINUTES=60 SEED=7
	$(BUILD_LAB)
	$(BIN)/lab chaos --minutes $(MINUTES) --seed $(SEED) $(CHAOS_ARGS)

HOURS ?= 10
SPEED ?= 50
soak: setup ## ten hours of scrapes, top, page and interval logs in minutes: memory stays flat; make soak HOURS=10 SPEED=50
	$(BUILD_SERVICE)
	$(BUILD_LAB)
	$(BIN)/lab soak --hours $(HOURS) --speed $(SPEED)

promotions: setup ## time promotions of a standby, and check that they lose nothing; make promotions ROUNDS=5
	$(CARGO) build --release $(LOCKED) -p tickcast-publisher $$(.ci/features tickcast-publisher)
	TICKCAST_ROUNDS=$(ROUNDS) $(CARGO) test --release $(LOCKED) -p tickcast-tests --test system standby::promotions -- --nocapture --test-threads=1

JOINERS ?= 200
RATE ?= 20000
witnesses: setup ## delays of other subscribers during a stall and during many joins; make witnesses JOINERS=200 RATE=20000
	$(CARGO) build --release $(LOCKED) --workspace --bins
	TICKCAST_JOINERS=$(JOINERS) TICKCAST_RATE=$(RATE) $(CARGO) test --release $(LOCKED) -p tickcast-tests --test system isolation::witnesses -- --nocapture

test-rdma-long: ## test-rdma with more repetitions; make test-rdma-long SUITES=promoted
	TICKCAST_LAB_LONG=1 $(MAKE) --no-print-directory test-rdma

# The stages of a test. Every program and test is built once, in the debug profile, with all checks. The
# simulator and the counted stages are optimised. They have their own lane from the start, because cargo's
# build lock is per profile. Lints and documents follow them, because they fill the cores while the unit tests
# wait. The lab, fuzzing and chaos fill the cores, too, so they follow the unit tests and run side by side.
.PHONY: stages lane-release lane-build lane-unit lane-lab lane-fuzz
STAGE = @.ci/stage
MAKE_STAGE = $(MAKE) --no-print-directory
MAKE_BUILT = $(MAKE_STAGE) BIN=$(TARGET)/debug BUILD_SERVICE=: BUILD_LAB=: BUILD_BINS=: BUILD_FUZZ=: BUILD_COUNTS=:
stages:
	@echo "seed of the day: $(DAY)"
	$(STAGE) fmt-check $(MAKE_STAGE) fmt-check
	@failed=0 lanes=(); lane() { $(MAKE_STAGE) lane-$$1 & lanes+=($$!); }; \
	lane release; \
	if $(MAKE_STAGE) lane-build && $(MAKE_STAGE) lane-unit; then lane lab; lane fuzz; else failed=1; fi; \
	for lane in $${lanes[@]}; do wait $$lane || failed=1; done; exit $$failed

lane-release:
	$(STAGE) build-sim $(MAKE_STAGE) build-sim
	$(STAGE) simulate $(MAKE_STAGE) simulate BUILD_BINS=:
	$(STAGE) lines $(MAKE_STAGE) lines BUILD_BINS=:
	$(STAGE) small-worlds $(MAKE_STAGE) small-worlds BUILD_BINS=: SMALL_WORLDS_ARGS="--sample $(DAY)"
	$(STAGE) grid $(MAKE_STAGE) grid BUILD_BINS=: GRID_ARGS="--sample $(DAY)"
	$(STAGE) planted $(MAKE_STAGE) planted BUILD_BINS=:
	$(STAGE) counts $(MAKE_STAGE) counts
	$(STAGE) lint $(MAKE_STAGE) lint
	$(STAGE) docs $(MAKE_STAGE) docs

lane-build:
	$(STAGE) build $(MAKE_STAGE) build-tests
	$(STAGE) check-configs $(MAKE_BUILT) check-configs
	$(STAGE) demo $(MAKE_BUILT) demo

lane-unit:
	$(STAGE) unit $(MAKE_STAGE) unit TEST_ARGS=--no-fail-fast

lane-lab:
	$(STAGE) test-rdma $(MAKE_BUILT) test-rdma

lane-fuzz:
	$(STAGE) fuzz $(MAKE_BUILT) fuzz FUZZ=mutate SECONDS_EACH=4 SEED=$(DAY)
	$(STAGE) chaos $(MAKE_BUILT) chaos SEED=$(DAY) MINUTES=2 CHAOS_ARGS='--quiet --or-skip --report $(TARGET)/tmp/chaos.html'

demo: setup ## simulator, publisher, three lossy subscribers; DEMO_ARGS are passed on
	$(BUILD_SERVICE)
	$(BIN)/tickcast demo $(DEMO_ARGS)

ARGS ?=
# The cost of more receivers than one machine holds comes from the grid of loss and receivers, in virtual
# time. A run of selected measures leaves the grid out.
BENCH_GRID = $(if $(filter-out --quick,$(ARGS)),,1)
bench: setup ## measure tickcast beside a raw floor and its peers, in one run; make bench ARGS=--quick
	$(BUILD_LAB)
	$(if $(BENCH_GRID),$(BUILD_BINS))
	rm -f $(BIN)/bench.hlog
	$(BIN)/lab bench --summary $(BIN)/bench.json --html $(BIN)/bench.html --hlog $(BIN)/bench.hlog $(ARGS)
	$(if $(BENCH_GRID),$(BIN)/grid --receivers-max $(if $(ARGS),10,1000) > $(BIN)/bench-grid.md)
	$(if $(BENCH_GRID),@cat $(BIN)/bench-grid.md)
	@echo "written: $(BIN)/bench.json, $(BIN)/bench.html, $(BIN)/bench.hlog$(if $(BENCH_GRID), and $(BIN)/bench-grid.md)"

bench-peers: setup ## build the peers that bench measures beside: Aeron C and iceoryx2
	@LOCKED=$(LOCKED) tests/lab/peers/build $(BIN)

install-c: setup ## the C library, headers and pkg-config file; make install-c PREFIX=/usr DESTDIR=...
	features=$$(.ci/features tickcast-c) && $(CARGO) build --release $(LOCKED) -p tickcast-c $$features && \
	subscriber/capi/install $(BIN)/libtickcast.a $${features:+RDMA=yes} DESTDIR=$(DESTDIR) PREFIX=$(or $(PREFIX),/usr/local)

package: setup ## Debian packages in target/packages, checked by lintian (needs cargo-deb, lintian)
	CARGO="$(CARGO)" configs/package/build

PACKAGES = $(TARGET)/packages
package-test: package ## install, start, upgrade and purge the packages in a bare chroot (needs root, mmdebstrap, cgroup2)
	rm -rf $(PACKAGES)/old $(PACKAGES)/new && mkdir $(PACKAGES)/old $(PACKAGES)/new
	mv $(PACKAGES)/*.deb $(PACKAGES)/old
	BUILT=1 configs/package/build 99.0.0-1 && mv $(PACKAGES)/*_99.0.0-1_*.deb $(PACKAGES)/new
	cp $(PACKAGES)/old/*.deb $(PACKAGES)
	configs/package/test $(PACKAGES)/old $(PACKAGES)/new

package-same: package ## build the packages again in another folder, and compare the bytes
	configs/package/same

image: package ## an OCI image from scratch in target/packages (needs root, buildah)
	configs/package/image

sbom: setup ## the CycloneDX bill of materials in target/packages (needs cargo-cyclonedx)
	configs/package/sbom

# Chromium comes from Debian, and Playwright from npm. Without them the test reports that it skips.
page-test: setup ## the publisher's page in headless Chromium (install chromium and node); screenshots: target/tmp/browser
	$(CARGO) test $(LOCKED) -p tickcast-publisher --test all -- browser --nocapture

deny: ## licences, advisories, sources of dependencies (needs cargo-deny)
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --all-features check; \
	else echo "deny: cargo-deny is not installed, nothing was checked; 'cargo install cargo-deny' gets it"; fi

clean: ## remove what was built
	$(CARGO) clean
