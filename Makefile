# Two commands do everything: `make demo` shows the main job, `make test` runs all tests.

CARGO ?= cargo
TRACE ?=
SKIPS := $(CURDIR)/target/skipped-tests

DENY_VERSION := 0.20.2
TOOLS := $(CURDIR)/target/tools

.PHONY: demo test bench lint deny peers index-peers

demo:
	$(CARGO) build --release --quiet
	./target/release/kvjournal demo $(if $(TRACE),--trace $(TRACE))

# KVJ_LONG=1 makes the crash, power-cut and property tests longer. A test that cannot run here is counted.
test:
	@mkdir -p target && rm -f $(SKIPS) && touch $(SKIPS)
	KVJ_SKIPS=$(SKIPS) $(CARGO) test
	@echo "skipped tests: $$(wc -l < $(SKIPS))" && cat $(SKIPS)

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

# Licences, sources and advisories of all dependencies, by deny.toml. The advisories need their database, which is
# fetched from GitHub; where that cannot be reached, it is said and the rest is checked.
deny: export PATH := $(PATH):$(TOOLS)/bin
deny:
	@command -v cargo-deny >/dev/null || CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	$(CARGO) install --quiet --locked cargo-deny@$(DENY_VERSION) --root $(TOOLS)
	$(CARGO) deny check bans licenses sources
	@if $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny check advisories; \
	else echo "NOT CHECKED: advisories, whose database cannot be reached from here" >&2; fi

# The journal's own figures; `make peers` measures it beside others. Arguments: BENCH_ARGS="--quick --trace FILE".
bench:
	$(CARGO) bench --bench figures -- $(BENCH_ARGS)

# Each beside others, in one run. BENCH_ARGS=--quick for short, TRACE=FILE for the requests of a trace.
PEERS_ARGS = $(BENCH_ARGS) $(if $(TRACE),--trace $(abspath $(TRACE)))
peers: index-peers
	cd benches/peers && $(CARGO) run --release -- $(PEERS_ARGS)

# The index beside Dynamo's; of BENCH_ARGS it knows --quick.
INDEX_ARGS = $(filter --quick,$(BENCH_ARGS)) $(if $(TRACE),--trace $(abspath $(TRACE)))
index-peers:
	cd benches/peers && $(CARGO) build --release -p kvjournal-index-peers
	./benches/peers/target/release/heap $(INDEX_ARGS)
	./benches/peers/target/release/speed $(INDEX_ARGS)
